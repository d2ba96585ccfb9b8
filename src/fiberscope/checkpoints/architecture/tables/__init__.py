"""One table per model class: which tensors exist and what role each plays."""
