"""Random PyTorch trainings by ``training_step``, against eager PyTorch."""
