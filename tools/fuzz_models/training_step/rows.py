"""The layers that models are made of: a line each, how often it is drawn, then what makes it.

c is the number of channels of what it is given, a multiple of 4, and d another one, which the
result has if the line names it. Lines are sorted by what they are given: images [B, C, H, W],
tokens [B, T, C], rows [B, C]; those of SHARED are given any of the last two.
"""

IMAGES = """
6 nn.Conv2d(c, d, 3, padding=1)
2 nn.Conv2d(c, d, 3, stride=2, padding=1, bias=False)
2 nn.Conv2d(c, c, 3, padding=1, groups=c)
1 nn.Conv2d(c, d, 1, groups=2)
1 nn.Conv2d(c, d, 3, padding=2, dilation=2)
1 nn.ConvTranspose2d(c, d, 2, stride=2)
6 nn.BatchNorm2d(c)
1 nn.BatchNorm2d(c, affine=False)
1 nn.BatchNorm2d(c, track_running_stats=False)
2 nn.GroupNorm(2, c)
1 nn.InstanceNorm2d(c, affine=True)
2 nn.ReLU()
1 nn.SiLU(inplace=True)
1 nn.Hardswish()
1 nn.PReLU(c)
2 nn.MaxPool2d(2, ceil_mode=True)
1 nn.AvgPool2d(3, 1, 1)
1 nn.Upsample(scale_factor=2)
1 nn.Dropout2d(0.0)
2 Squeeze(c)
3 Residual(nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c), nn.GELU())
2 Again(nn.Conv2d(c, c, 3, padding=1), nn.Tanh())
1 Again(nn.Conv2d(c, c, 1), nn.SiLU(), reentrant=True)
1 weight_norm(nn.Conv2d(c, d, 1))
1 Twice(nn.Conv2d(c, c, 3, padding=1))
1 nn.Sequential(nn.Conv2d(c, 4 * d, 1), nn.PixelShuffle(2))
1 nn.BatchNorm2d(c).eval()
1 nn.Conv2d(c, d, 1).requires_grad_(False)
1 Apply(lambda x: functional.pad(x, (1, 0, 0, 1)))
1 Apply(lambda x: torch.roll(x, 1, -1))
"""

TOKENS = """
4 Residual(nn.LayerNorm(c), Attention(c, 2))
3 Residual(nn.RMSNorm(c), Attention(c, 4, True, kv=2))
2 Residual(Attention(c, 2, True, "written"), nn.LayerNorm(c))
1 Again(Residual(nn.LayerNorm(c), Attention(c, 2, True)))
1 nn.TransformerEncoderLayer(c, 2, 8, 0.0, batch_first=True)
1 nn.TransformerEncoderLayer(c, 2, 8, 0.0, "gelu", batch_first=True, norm_first=True)
2 Rotary(c)
2 First(nn.GRU(c, d, batch_first=True))
2 First(nn.LSTM(c, d, batch_first=True))
1 First(nn.RNN(c, d, batch_first=True))
1 First(nn.LSTM(c, d // 2, batch_first=True, bidirectional=True))
1 Apply(lambda x: x.cumsum(1) / 4)
1 Apply(lambda x: x - x.mean(1, keepdim=True))
1 Apply(lambda x: torch.einsum("btc,bsc->bts", x, x).softmax(-1) @ x)
1 nn.Sequential(Apply(lambda x: x.mT), nn.Conv1d(c, d, 3, padding=1), Apply(lambda x: x.mT))
"""

ROWS = """
2 nn.BatchNorm1d(c)
1 spectral_norm(nn.Linear(c, d))
1 nn.Sequential(nn.Linear(c, 2 * d), Apply(lambda x: x.unflatten(1, (-1, 2)).amax(-1)))
1 Apply(lambda x: x @ x.mT @ x / 4)
1 Apply(lambda x: x / (1 + torch.linalg.vector_norm(x, dim=0)))
"""

SHARED = """
6 nn.Linear(c, d)
2 nn.Linear(c, d, bias=False)
2 nn.LayerNorm(c)
1 nn.LayerNorm(c, elementwise_affine=False)
2 nn.RMSNorm(c, eps=1e-5)
2 Residual(nn.LayerNorm(c), nn.Linear(c, 2 * c), nn.GELU(), nn.Linear(2 * c, c))
2 Residual(nn.RMSNorm(c, eps=1e-5), Gated(c, 8))
2 Again(nn.Linear(c, c), nn.Tanh())
1 Again(nn.Linear(c, c), nn.SiLU(), reentrant=True)
1 Experts(c)
3 Lora(nn.Linear(c, d))
2 Running(c)
1 nn.Linear(c, d).requires_grad_(False)
1 weight_norm(nn.Linear(c, d))
1 Twice(nn.Linear(c, c))
1 nn.Dropout(0.0)
1 nn.GELU("tanh")
1 nn.Softplus()
1 nn.ELU(inplace=True)
1 nn.GLU() if c > 4 and c % 8 == 0 else nn.Identity()
1 Apply(lambda x: functional.normalize(x, dim=-1))
1 Apply(lambda x: x.sort(-1).values)
1 Apply(lambda x: x * x.detach().sigmoid())
1 Apply(lambda x: x.clamp(-1, 1))
1 Apply(lambda x: torch.where(x > 0, x, 0.1 * x))
1 Apply(lambda x: torch.cat([x[..., 1:], x[..., :1]], -1))
"""

OPTIMIZERS = """
2 torch.optim.SGD(p, 0.1)
2 torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.1, nesterov=True)
1 torch.optim.SGD(p, 0.05, momentum=0.9, fused=True)
1 torch.optim.SGD(p, 0.05, momentum=0.8, maximize=True, foreach=True)
2 torch.optim.Adam(p, 0.01, (0.8, 0.9), 1e-6, 0.1)
1 torch.optim.Adam(p, torch.tensor(0.01))
1 torch.optim.Adam(p, 0.01, weight_decay=0.1, decoupled_weight_decay=True, foreach=False)
3 torch.optim.AdamW(p, 0.01)
2 torch.optim.AdamW(p, 0.01, weight_decay=0.1, fused=True)
1 torch.optim.AdamW(p, 0.02, (0.5, 0.75), maximize=True, foreach=True)
1 torch.optim.RMSprop(p, 0.01)
1 torch.optim.RMSprop(p, 0.005, 0.9, momentum=0.9, centered=True, weight_decay=0.1)
1 torch.optim.Adagrad(p, 0.05, 0.1, initial_accumulator_value=0.1)
1 torch.optim.Adagrad(p, 0.05, weight_decay=0.1, fused=True)
2 torch.optim.Adafactor(p, 0.02, weight_decay=0.1)
1 torch.optim.Adafactor(p, 0.02, beta2_decay=-0.5, d=0.5, eps=(1e-8, 1e-2))
1 torch.optim.Muon(p, 0.02)
"""

LOSSES = """
4 functional.cross_entropy(y, t)
1 functional.cross_entropy(y, t, label_smoothing=0.1)
1 functional.cross_entropy(y, t, ignore_index=1)
1 functional.nll_loss(functional.log_softmax(y, -1), t)
1 functional.mse_loss(y, functional.one_hot(t, y.shape[-1]).to(y.dtype))
1 functional.smooth_l1_loss(y, functional.one_hot(t, y.shape[-1]).to(y.dtype))
1 functional.binary_cross_entropy_with_logits(y, functional.one_hot(t, y.shape[-1]).to(y.dtype))
1 functional.cross_entropy(y, functional.one_hot(t, y.shape[-1]).to(y.dtype), reduction="sum") / 4
1 functional.cross_entropy(y[1:], t[1:]) + 0.01 * y.square().mean()
"""
