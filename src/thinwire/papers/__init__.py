"""The papers' experiments: their settings, runs, claims, and the sections of their report pages."""
