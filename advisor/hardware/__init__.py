"""What is known about GPUs: figures with sources, occupancy, roofline, stored calibrations."""
