"""What `splash bench` measures, and how the results are kept and shown."""
