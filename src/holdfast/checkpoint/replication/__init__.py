"""Stores from stores: forks, replicas, and the copies between them."""
