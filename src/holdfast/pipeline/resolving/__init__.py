"""From a declared operator to work for tasks: one module for each family of operators."""
