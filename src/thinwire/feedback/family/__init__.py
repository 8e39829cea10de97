"""The rest of the EF21 family, and its relatives: one file a rule."""
