"""Models of torchvision and timm in small configurations. Add a row to `torchvision_rows` or
`timm_rows`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tools.client_models.torch_row import Inputs, TorchRow

CLASSES = 10
NOISE = 0.02


def images(name: str, size: int, count: int = 4) -> Inputs:
    """Return what makes a batch of images, under the name that forward has for it."""
    return lambda g: {name: torch.randn(count, 3, size, size, generator=g)}


def torchvision_rows() -> dict[str, TorchRow]:
    """Return the rows of torchvision; ImportError where it is not installed."""
    from torchvision import models
    from torchvision.models import maxvit, resnet, swin_transformer, vision_transformer

    def named(name: str, size: int = 64, argument: str = "x", **options: Any) -> TorchRow:
        def make() -> torch.nn.Module:
            return getattr(models, name)(weights=None, num_classes=CLASSES, **options)

        return TorchRow(make, images(argument, size), noise=NOISE)

    def built(make: Callable[[], torch.nn.Module], size: int) -> TorchRow:
        return TorchRow(make, images("x", size), noise=NOISE)

    def residual(block: Any, depth: int, **options: int) -> TorchRow:
        return built(lambda: resnet.ResNet(block, [depth] * 4, CLASSES, **options), 64)

    def narrow_vgg() -> torch.nn.Module:
        module = models.vgg11_bn(weights=None)
        width = module.classifier[0].in_features
        layers = [torch.nn.Linear(width, 32), torch.nn.ReLU(), torch.nn.Linear(32, CLASSES)]
        module.classifier = torch.nn.Sequential(*layers)
        return module

    return {
        "alexnet": named("alexnet", dropout=0.0),
        "vgg11-bn": built(narrow_vgg, 32),
        "squeezenet": named("squeezenet1_1", dropout=0.0),
        "resnet18": residual(resnet.BasicBlock, 2),
        "resnet50": residual(resnet.Bottleneck, 1, width_per_group=16),
        "resnext50": residual(resnet.Bottleneck, 1, groups=8, width_per_group=4),
        "wide-resnet50": residual(resnet.Bottleneck, 1, width_per_group=32),
        "densenet": built(lambda: models.DenseNet(8, (2, 2, 2, 2), 16, num_classes=CLASSES), 64),
        "googlenet": named("googlenet", init_weights=True, dropout=0.0, dropout_aux=0.0),
        "inception-v3": named("inception_v3", 96, init_weights=True, dropout=0.0, aux_logits=False),
        "mobilenet-v2": named("mobilenet_v2", width_mult=0.35, dropout=0.0),
        "mobilenet-v3": named("mobilenet_v3_small", width_mult=0.5, dropout=0.0),
        "mnasnet": named("mnasnet0_5", dropout=0.0),
        "shufflenet-v2": named("shufflenet_v2_x0_5"),
        "efficientnet-b0": named("efficientnet_b0", dropout=0.0, stochastic_depth_prob=0.0),
        "regnet-y": named("regnet_y_400mf"),
        "regnet-x": named("regnet_x_400mf"),
        "convnext": named("convnext_tiny", 32, stochastic_depth_prob=0.0),
        "vit": built(
            lambda: vision_transformer.VisionTransformer(
                32, 8, 2, 4, 32, 48, num_classes=CLASSES, dropout=0.0
            ),
            32,
        ),
        "swin": built(
            lambda: swin_transformer.SwinTransformer(
                [2, 2], 16, [2, 1], [2, 4], [4, 4], stochastic_depth_prob=0.0, num_classes=CLASSES
            ),
            32,
        ),
        "maxvit": built(
            lambda: maxvit.MaxVit((64, 64), 16, 2, [16, 32], [1, 1], 8, 0.0, num_classes=CLASSES),
            64,
        ),
    }


def timm_rows() -> dict[str, TorchRow]:
    """Return the rows of timm; ImportError where it is not installed."""
    import timm

    def named(name: str, size: int, **options: Any) -> TorchRow:
        return TorchRow(
            lambda: timm.create_model(name, num_classes=CLASSES, **options),
            images("x", size),
            noise=NOISE,
        )

    small = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
    return {
        "timm-vit": named("vit_tiny_patch16_224", 32, **small),
        "timm-deit": named("deit_tiny_distilled_patch16_224", 32, **small),
        "timm-beit": named("beitv2_base_patch16_224", 32, **small),
        "timm-mixer": TorchRow(
            lambda: timm.models.MlpMixer(
                CLASSES, img_size=32, patch_size=8, embed_dim=32, num_blocks=2
            ),
            images("x", 32),
            noise=NOISE,
        ),
        "timm-convnext": named("convnext_atto", 32),
        "timm-resnet": named("resnet10t", 64),
        "timm-efficientnet": named("efficientnet_lite0", 64),
        "timm-mobilenetv4": named("mobilenetv4_conv_small_050", 64),
        "timm-ghostnet": named("ghostnet_050", 64),
        "timm-poolformer": named("poolformer_s12", 64),
    }
