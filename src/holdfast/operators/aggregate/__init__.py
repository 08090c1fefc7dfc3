"""`group_by().agg()`: one row for each group, kept up to date."""
