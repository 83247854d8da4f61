"""The parts of benchmarks/faithfulness.py: networks, maps, scores and the table."""
