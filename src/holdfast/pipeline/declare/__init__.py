"""What users declare, checked without Spark: one module for each family of operators."""
