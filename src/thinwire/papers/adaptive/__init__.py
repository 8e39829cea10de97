"""What people train: a transformer under AdamW, and the rules that come to its loss with few bytes."""
