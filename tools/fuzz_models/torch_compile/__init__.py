"""Random PyTorch programs under ``torch.compile(backend="meta")``, against eager PyTorch."""
