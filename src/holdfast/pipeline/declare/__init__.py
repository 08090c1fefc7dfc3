"""What the methods of a stream check and declare, one module for each family. No Spark in here."""
