"""Networks of torch with random weights: ResNet-50, a UNet's blocks as in SDXL, and a VAE's decoder."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import functional as F

Tensor = Any  #: a tensor of torch, whose types mypy does not read


class Bottleneck(nn.Module):  # type: ignore[misc]  # a class that mypy does not read
    """Convolutions 1 x 1, 3 x 3 (with the stride), 1 x 1 to four times the channels; a residual (He et al. 2015)."""

    def __init__(self, ic: int, width: int, stride: int) -> None:
        super().__init__()
        sizes = (ic, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, k, s, k // 2, bias=False) for a, b, k, s in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b, _, _ in sizes)
        self.shortcut = nn.Sequential()
        if stride != 1 or ic != 4 * width:
            self.shortcut = nn.Sequential(nn.Conv2d(ic, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for conv, norm in zip(self.convs[:2], self.norms[:2]):
            y = F.relu(norm(conv(y)))
        return F.relu(self.norms[2](self.convs[2](y)) + self.shortcut(x))


class ResNet50(nn.Module):  # type: ignore[misc]  # a class that mypy does not read
    """ResNet-50 for 1000 classes (He et al. 2015), with the stride in the 3 x 3 convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        blocks, ic = [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            width = 64 << stage
            for number in range(count):
                blocks.append(Bottleneck(ic, width, 2 if stage and not number else 1))
                ic = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.classes = nn.Linear(ic, 1000)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        for block in self.blocks:
            nn.init.constant_(block.norms[2].weight, 0.2)  # near identity, so that errors do not grow with depth

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks(F.max_pool2d(self.stem(x), 3, 2, 1))
        return self.classes(y.mean((2, 3)))


class ResidualBlock(nn.Module):  # type: ignore[misc]  # a class that mypy does not read
    """Twice GroupNorm, SiLU and a 3 x 3 convolution, with a residual; 1 x 1 if channels change."""

    def __init__(self, ic: int, oc: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList((nn.GroupNorm(32, ic), nn.GroupNorm(32, oc)))
        self.convs = nn.ModuleList((nn.Conv2d(ic, oc, 3, 1, 1), nn.Conv2d(oc, oc, 3, 1, 1)))
        self.shortcut = nn.Conv2d(ic, oc, 1) if ic != oc else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for norm, conv in zip(self.norms, self.convs):
            y = conv(F.silu(norm(y)))
        return y + self.shortcut(x)


class Attention(nn.Module):  # type: ignore[misc]  # a class that mypy does not read
    """Self-attention over all positions, in heads of 64 channels, and a feed-forward layer; attention is torch's."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.heads = channels // 64
        self.norms = nn.ModuleList((nn.LayerNorm(channels), nn.LayerNorm(channels)))
        self.qkv, self.out = nn.Linear(channels, 3 * channels, bias=False), nn.Linear(channels, channels)
        self.wide, self.narrow = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        y = x.flatten(2).transpose(1, 2)
        parts = self.qkv(self.norms[0](y)).view(n, height * width, 3, self.heads, 64).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        y = y + self.out(attended.transpose(1, 2).reshape(n, height * width, channels))
        y = y + self.narrow(F.gelu(self.wide(self.norms[1](y))))
        return y.transpose(1, 2).reshape(n, channels, height, width)


class UNet(nn.Module):  # type: ignore[misc]  # a class that mypy does not read
    """A UNet's way down on latents of 4 channels, with SDXL's widths: 320, 640, 1280, each at half the size."""

    def __init__(self, widths: tuple[int, ...] = (320, 640, 1280)) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, widths[0], 3, 1, 1)
        layers: list[Any] = []
        for number, (ic, oc) in enumerate(zip((widths[0], *widths), widths)):
            layers += [nn.Conv2d(ic, ic, 3, 2, 1)] if number else []
            layers += [ResidualBlock(ic, oc), *([Attention(oc)] if number else []), ResidualBlock(oc, oc)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.first(x))


class Decoder(nn.Module):  # type: ignore[misc]  # a class that mypy does not read
    """A VAE's decoder from latents of 4 channels to an image eight times as large, with Stable Diffusion's widths."""

    def __init__(self, widths: tuple[int, ...] = (512, 512, 256, 128)) -> None:
        super().__init__()
        layers: list[Any] = [nn.Conv2d(4, widths[0], 3, 1, 1), ResidualBlock(widths[0], widths[0])]
        for number, (ic, oc) in enumerate(zip((widths[0], *widths), widths)):
            layers += [nn.Upsample(scale_factor=2), nn.Conv2d(ic, ic, 3, 1, 1)] if number else []
            layers += [ResidualBlock(ic, oc)]
        self.layers = nn.Sequential(*layers, nn.GroupNorm(32, widths[-1]), nn.SiLU(), nn.Conv2d(widths[-1], 3, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
