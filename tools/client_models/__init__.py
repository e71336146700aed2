"""Models that users bring: transformers, torchvision and timm in small configurations, with random
weights, through `meta.frontend.from_torch`. ``python -m tools.client_models --help``.
"""
