"""Files that Spark wrote, read without a JVM: names, logs, blocks, changelogs, checksums."""
