"""What a model's behaviour determines about its parameters, and how strongly."""

__version__ = "0.1.0"
