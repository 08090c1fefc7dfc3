"""What may be deleted: retention, reachability, the collector, and what each checkpoint costs."""
