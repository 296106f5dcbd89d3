"""Complete examples, the demo, races with peers and benchmarks of Voxelocity. Importing it imports nothing."""

__version__ = "0.1.0"
