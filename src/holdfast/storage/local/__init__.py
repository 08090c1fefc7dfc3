"""Local disk: system calls, files, locks, and errors of the system."""
