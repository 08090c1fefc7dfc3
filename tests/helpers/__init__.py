"""What tests share: small stores and pipelines, models that know the right answer, and servers."""
