"""Cases of convolution, pooling, normalisation, losses, images, detection and quantization."""

import numpy as np
import torch
import torch.nn.functional as F
from tvm import relax as R

from tests.frontend.relax.records import RelaxCase, data

X1, X2, X3 = data(2, 4, 9), data(2, 4, 8, 7), data(1, 2, 5, 6, 4)
G, B4 = data(4, low=0.5), data(4)
MEAN, VAR = data(4, low=-0.3, high=0.3), data(4, low=0.5, high=1.5)
GRID = data(2, 2, 3, 3, low=-1.2, high=1.2)
THETA = data(2, 2, 3)
BOXES = np.array([[0, 0.5, 0.5, 5.0, 6.0], [1, 0.0, 1.0, 4.0, 4.0]], np.float32)
SCALE, ZERO = np.array([0.1, 0.2, 0.3, 0.4], np.float32), np.array([3, -2, 0, 1], np.int8)
DETECTIONS = np.array(
    [[[0, 0.9, 0, 0, 4, 4], [0, 0.8, 0, 0, 4, 3.5], [1, 0.2, 5, 5, 8, 8]]], np.float32
)


def _norm(x, w, b, mean, var, **options):
    y = F.batch_norm(x, mean.clone(), var.clone(), w, b, **options)
    return y, mean, var


def _norm_of_batch(x, w, b, mean, var):
    mean_now, var_now = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
    y = F.batch_norm(x, mean_now, var_now, w, b)
    return y, 0.9 * mean + 0.1 * mean_now, 0.9 * var + 0.1 * var_now


def _quantized(x, scale, zero):
    shape = (1, 4, 1)
    steps = torch.round(x / scale.reshape(shape)) + zero.reshape(shape)
    return steps.clamp(-128, 127).to(torch.int8)


def _nll(p, t, w):
    return F.nll_loss(p, t, w, ignore_index=1)


def _at(image, y, x):
    """Interpolate linearly at a position."""
    grid = torch.tensor([[[[2 * x / 6 - 1, 2 * y / 7 - 1]]]])
    return F.grid_sample(image[None], grid, align_corners=True)[0, :, 0, 0]


CASES = [
    RelaxCase(
        "nn.conv1d",
        lambda x, w: R.op.nn.conv1d(x, w, 2, (1, 1), 2),
        (X1, data(3, 4, 3)),
        lambda x, w: F.conv1d(x, w, None, 2, 1, 2),
    ),
    RelaxCase(
        "nn.conv2d",
        lambda x, w: R.op.nn.conv2d(x, w, (2, 1), (1, 2, 1, 2), groups=2),
        (X2, data(6, 2, 3, 3)),
        lambda x, w: F.conv2d(x, w, None, (2, 1), (1, 2), groups=2),
    ),
    RelaxCase(
        "nn.conv2d",
        lambda x, w: R.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO"),
        (data(2, 8, 7, 4), data(3, 3, 4, 5)),
        lambda x, w: F.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1)).permute(0, 2, 3, 1),
        label="NHWC",
    ),
    RelaxCase("nn.conv3d", lambda x, w: R.op.nn.conv3d(x, w), (X3, data(3, 2, 2, 3, 2)), F.conv3d),
    RelaxCase(
        "nn.conv1d_transpose",
        lambda x, w: R.op.nn.conv1d_transpose(x, w, 2, (1, 1), 1),
        (X1, data(4, 3, 3)),
        lambda x, w: F.conv_transpose1d(x, w, None, 2, 1, 1),
    ),
    RelaxCase(
        "nn.conv2d_transpose",
        lambda x, w: R.op.nn.conv2d_transpose(x, w, (2, 2), (1, 1, 1, 1), (1, 0), groups=2),
        (X2, data(4, 3, 3, 3)),
        lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, (1, 0), groups=2),
    ),
    RelaxCase(
        "nn.conv3d_transpose",
        R.op.nn.conv3d_transpose,
        (X3, data(2, 3, 2, 2, 2)),
        F.conv_transpose3d,
    ),
    RelaxCase(
        "nn.max_pool1d",
        lambda x: R.op.nn.max_pool1d(x, 3, 2, (1, 1)),
        (X1,),
        lambda x: F.max_pool1d(x, 3, 2, 1),
    ),
    RelaxCase(
        "nn.max_pool2d",
        lambda x: R.op.nn.max_pool2d(x, (3, 2), (2, 2), ceil_mode=True),
        (X2,),
        lambda x: F.max_pool2d(x, (3, 2), 2, ceil_mode=True),
    ),
    RelaxCase(
        "nn.max_pool3d", lambda x: R.op.nn.max_pool3d(x, 2, 2), (X3,), lambda x: F.max_pool3d(x, 2)
    ),
    RelaxCase(
        "nn.avg_pool1d",
        lambda x: R.op.nn.avg_pool1d(x, 3, 2),
        (X1,),
        lambda x: F.avg_pool1d(x, 3, 2),
    ),
    RelaxCase(
        "nn.avg_pool2d",
        lambda x: R.op.nn.avg_pool2d(x, 3, 2, (1, 1, 1, 1), count_include_pad=False),
        (X2,),
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    ),
    RelaxCase(
        "nn.avg_pool3d", lambda x: R.op.nn.avg_pool3d(x, 2, 2), (X3,), lambda x: F.avg_pool3d(x, 2)
    ),
    RelaxCase(
        "nn.adaptive_avg_pool1d",
        lambda x: R.op.nn.adaptive_avg_pool1d(x, 4),
        (X1,),
        lambda x: F.adaptive_avg_pool1d(x, 4),
    ),
    RelaxCase(
        "nn.adaptive_avg_pool2d",
        lambda x: R.op.nn.adaptive_avg_pool2d(x, (3, 2)),
        (X2,),
        lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    ),
    RelaxCase(
        "nn.adaptive_avg_pool3d",
        lambda x: R.op.nn.adaptive_avg_pool3d(x, (1, 2, 3)),
        (X3,),
        lambda x: F.adaptive_avg_pool3d(x, (1, 2, 3)),
    ),
    RelaxCase(
        "grad.avg_pool2d_backward",
        lambda dy, x: R.op.grad.avg_pool2d_backward(dy, x, (2, 2), (2, 2)),
        (data(2, 4, 4, 3), X2),
        lambda dy, x: torch.autograd.functional.vjp(lambda v: F.avg_pool2d(v, 2), x, dy)[1],
    ),
    RelaxCase(
        "grad.max_pool2d_backward",
        lambda dy, x: R.op.grad.max_pool2d_backward(dy, x, (2, 2), (2, 2)),
        (data(2, 4, 4, 3), X2),
        lambda dy, x: torch.autograd.functional.vjp(lambda v: F.max_pool2d(v, 2), x, dy)[1],
    ),
    RelaxCase(
        "grad.take_backward",
        lambda dy, x, i: R.op.grad.take_backward(dy, x, i, 0),
        (data(3, 4), data(5, 4), np.array([1, 4, 1])),
        lambda dy, x, i: torch.zeros_like(x).index_add(0, i, dy),
    ),
    RelaxCase("nn.softmax", lambda x: R.op.nn.softmax(x, 1), (X2,), lambda x: x.softmax(1)),
    RelaxCase(
        "nn.log_softmax", lambda x: R.op.nn.log_softmax(x, 1), (X2,), lambda x: x.log_softmax(1)
    ),
    RelaxCase(
        "nn.dropout", lambda x: R.op.nn.dropout(x, 0.5), (X1,), lambda x: (x, torch.ones_like(x))
    ),
    RelaxCase(
        "nn.batch_norm",
        lambda x, w, b, m, v: R.op.nn.batch_norm(x, w, b, m, v, 1, 1e-5, training=False),
        (X2, G, B4, MEAN, VAR),
        _norm,
    ),
    RelaxCase(
        "nn.batch_norm",
        lambda x, w, b, m, v: R.op.nn.batch_norm(x, w, b, m, v, 1, 1e-5, training=True),
        (X2, G, B4, MEAN, VAR),
        _norm_of_batch,
        label="training",
    ),
    RelaxCase(
        "nn.batch_norm",
        lambda x, w, b, m, v: R.op.nn.batch_norm(x, w, b, m, v, 3, 1e-5, training=False),
        (data(2, 8, 7, 4), G, B4, MEAN, VAR),
        lambda x, w, b, m, v: ((x - m) / (v + 1e-5).sqrt() * w + b, m, v),
        label="channels last",
    ),
    RelaxCase(
        "nn.layer_norm",
        lambda x, w, b: R.op.nn.layer_norm(x, w, b, [-2, -1]),
        (X1, data(4, 9), data(4, 9)),
        lambda x, w, b: F.layer_norm(x, (4, 9), w, b),
    ),
    RelaxCase(
        "nn.rms_norm",
        lambda x, w: R.op.nn.rms_norm(x, w, [-1], 1e-5),
        (X1, data(9)),
        lambda x, w: F.rms_norm(x, (9,), w, 1e-5),
    ),
    RelaxCase(
        "nn.group_norm",
        lambda x, w, b: R.op.nn.group_norm(x, w, b, 2, 1, [2, 3]),
        (X2, G, B4),
        lambda x, w, b: F.group_norm(x, 2, w, b),
    ),
    RelaxCase(
        "nn.instance_norm",
        lambda x, w, b: R.op.nn.instance_norm(x, w, b, 1, [2, 3]),
        (X2, G, B4),
        lambda x, w, b: F.instance_norm(x, None, None, w, b),
    ),
    RelaxCase(
        "nn.instance_norm",
        lambda x, w, b: R.op.nn.instance_norm(x, w, b, 1, [0, 2, 3]),
        (X2, G, B4),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        label="examples too",
    ),
    RelaxCase(
        "nn.cross_entropy_with_logits",
        R.op.nn.cross_entropy_with_logits,
        (data(3, 4), data(3, 4, low=0)),
        lambda x, y: -(x * y).sum() / 3,
    ),
    RelaxCase(
        "nn.nll_loss",
        lambda p, t, w: R.op.nn.nll_loss(p, t, w, "mean", 1),
        (data(5, 4), np.array([0, 1, 3, 2, 1]), G),
        _nll,
    ),
    RelaxCase(
        "nn.nll_loss",
        lambda p, t: R.op.nn.nll_loss(p, t, None, "none", -100),
        (data(2, 4, 3), np.array([[0, 1, 3], [2, 2, 1]])),
        lambda p, t: F.nll_loss(p, t, reduction="none"),
        label="places",
    ),
    RelaxCase(
        "nn.pad",
        lambda x: R.op.nn.pad(x, (0, 0, 1, 2), "constant", 0.5),
        (data(2, 3),),
        lambda x: F.pad(x, (1, 2), value=0.5),
    ),
    RelaxCase(
        "nn.pad",
        lambda x: R.op.nn.pad(x, (0, 0, 0, 0, 2, 3), "circular"),
        (X1,),
        lambda x: F.pad(x, (2, 3), "circular"),
        label="circular",
    ),
    RelaxCase(
        "nn.pad",
        lambda x: R.op.nn.pad(x, (0, 0, 0, 0, 2, 3), "replicate"),
        (X1,),
        lambda x: F.pad(x, (2, 3), "replicate"),
        label="replicate",
    ),
    RelaxCase(
        "image.resize2d",
        lambda x: R.op.image.resize2d(x, (5, 9), layout="NCHW", method="linear"),
        (X2,),
        lambda x: F.interpolate(x, (5, 9), mode="bilinear"),
    ),
    RelaxCase(
        "image.resize3d",
        lambda x: R.op.image.resize3d(x, (4, 3, 6), method="linear"),
        (X3,),
        lambda x: F.interpolate(x, (4, 3, 6), mode="trilinear"),
    ),
    RelaxCase(
        "image.grid_sample",
        lambda x, g: R.op.image.grid_sample(x, g, align_corners=True),
        (X2, GRID),
        lambda x, g: F.grid_sample(x, g.permute(0, 2, 3, 1), align_corners=True),
    ),
    RelaxCase(
        "image.affine_grid",
        lambda x: R.op.image.affine_grid(x, (3, 4), align_corners=False),
        (THETA,),
        lambda x: F.affine_grid(x, [2, 1, 3, 4], align_corners=False).permute(0, 3, 1, 2),
    ),
    RelaxCase(
        "vision.roi_align",
        lambda x, r: R.op.vision.roi_align(x, r, (1, 1), 1.0, 1, layout="NCHW"),
        (X2, BOXES),
        # One sample, in the middle of each region.
        lambda x, r: torch.stack([_at(x[0], 3.25, 2.75), _at(x[1], 2.5, 2.0)]).reshape(2, 4, 1, 1),
    ),
    RelaxCase(
        "vision.roi_align",
        lambda x, r: R.op.vision.roi_align(x, r, (1, 1), 1.0, 1, aligned=True),
        (X2, BOXES),
        lambda x, r: torch.stack([_at(x[0], 2.75, 2.25), _at(x[1], 2.0, 1.5)]).reshape(2, 4, 1, 1),
        label="aligned",
    ),
    RelaxCase(
        "vision.roi_pool",
        lambda x, r: R.op.vision.roi_pool(x, r, (1, 1), 1.0),
        (X2, BOXES),
        lambda x, r: torch.stack(
            [x[0, :, 1:7, 1:6].amax((1, 2)), x[1, :, 1:5, 0:5].amax((1, 2))]
        ).reshape(2, 4, 1, 1),
    ),
    RelaxCase(
        "vision.get_valid_counts",
        lambda x: R.op.vision.get_valid_counts(x, 0.5, 0, 1),
        (DETECTIONS,),
        lambda x: (
            torch.tensor([2], dtype=torch.int32),
            torch.cat([x[:, :2], -torch.ones(1, 1, 6)], 1),
            torch.tensor([[0, 1, -1]], dtype=torch.int32),
        ),
    ),
    RelaxCase(
        "vision.non_max_suppression",
        lambda x, n, i: R.op.vision.non_max_suppression(x, n, i, iou_threshold=0.5),
        (DETECTIONS, np.array([3], np.int32), np.array([[0, 1, 2]], np.int32)),
        (torch.tensor([[0, 2, -1]], dtype=torch.int32), torch.tensor([[2]], dtype=torch.int32)),
    ),
    RelaxCase(
        "vision.all_class_non_max_suppression",
        lambda b, s: R.op.vision.all_class_non_max_suppression(
            b, s, R.const(2, "int64"), R.const(0.5, "float32"), R.const(-0.5, "float32")
        ),
        (
            np.array([[[0, 0, 4, 4], [0, 0, 4, 3.5], [5, 5, 8, 8], [9, 9, 10, 10]]], np.float32),
            np.array([[[-0.1, -0.2, 0.3, -0.9], [0.1, 0.9, 0.8, 0.7]]], np.float32),
        ),
        (
            torch.tensor([[0, 0, 2], [0, 0, 0], [0, 1, 1], [0, 1, 2]]),
            torch.tensor([4]),
        ),
    ),
    RelaxCase(
        "vision.multibox_transform_loc",
        lambda s, p, a: R.op.vision.multibox_transform_loc(
            s, p, a, True, 0.1, (1.0, 1.0, 1.0, 1.0), False
        ),
        (
            data(1, 3, 2),
            np.zeros((1, 8), np.float32),
            np.array([[[0.1, 0.2, 0.5, 0.7], [-0.2, 0.4, 0.6, 1.3]]], np.float32),
        ),
        lambda s, p, a: (
            a[:, :, [1, 0, 3, 2]].clamp(0, 1),
            torch.where(s.softmax(1) >= 0.1, s.softmax(1), 0.0)
            * torch.tensor([0.0, 1, 1]).reshape(1, 3, 1),
        ),
    ),
    RelaxCase(
        "quantize", lambda x, s, z: R.op.quantize(x, s, z, 1, "int8"), (X1, SCALE, ZERO), _quantized
    ),
    RelaxCase(
        "dequantize",
        lambda x, s, z: R.op.dequantize(x, s, z, 1, "float32"),
        (data(2, 4, 9, low=-90, high=90, dtype="int8"), SCALE, ZERO),
        lambda x, s, z: (x.int() - z.int().reshape(1, 4, 1)).float() * s.reshape(1, 4, 1),
    ),
]
