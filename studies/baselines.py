"""Two samplers to compare with: a conditional GAN of one evaluation, and a diffusion prior.

    python -m studies.baselines gan|diffusion CONFIG FOLDER --estimates RUN [--steps 6000]
    python -m studies.baselines tune CONFIG FOLDER [--cases 4]

CONFIG is that of a sampler (configs/lgg/sampler.toml) and RUN its training: the baselines have its
patients, masks, augmentation and point estimates. The same command resumes. The GAN is the
sampler's network, trained as rcGAN (Bendel, Ahmad and Schniter, NeurIPS 2023). The prior is
deepinv's DDPM++ for complex images; deepinv's DiffPIR (Zhu et al., CVPRW 2023) samples with it, and
``tune`` chooses its parameters on validation patients.
"""

from __future__ import annotations

import argparse
import json
import math
import tomllib
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any

import torch
from torch import nn

from taskuq._config import read_config
from taskuq.measure import MultiCoilMRI, fft2c, ifft2c, rss
from taskuq.recover import RECOVERIES, RecoveryTraining, SamplerNet, central_lines, load
from taskuq.training import NETWORKS, NetworkKind, Recipe, load_weights, save_weights, train
from taskuq.training._fit import TrainerOptions

# Samples of a case in training; weights of the critic's gradient penalty and drift, and of the
# critic; rate at which the reward for spread adapts.
SAMPLES, PENALTY, DRIFT, ADVERSARIAL, RATE = 2, 10.0, 1e-3, 1e-3, 1e-3


class GAN(SamplerNet):
    """The sampler's network as a generator, with a critic of an image and its estimate."""

    def __init__(self, config):
        super().__init__(config)
        pairs = pairwise((2, 32, 64, 128, 256))
        layers = [(nn.Conv2d(a, b, 4, stride=2, padding=1), nn.LeakyReLU(0.2)) for a, b in pairs]
        last = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1)
        self.critic = nn.Sequential(*chain(*layers, last))
        exact = math.sqrt(2 / (math.pi * SAMPLES * (SAMPLES + 1)))  # for Gaussian posteriors
        self.register_buffer("reward", torch.tensor(exact))


def gan_loss(net, batch, generator, *, estimate):
    """Return the sum of both players' losses, whose gradients do not mix."""
    estimates, truth = estimate(batch, generator)
    scale, inputs = estimates.scale.view(-1, 1, 1, 1), estimates.inputs()
    truth, known = truth[:, None] / scale, inputs[:, :2].norm(dim=1, keepdim=True)
    size = (len(inputs), SAMPLES, net.noise_size(*inputs.shape[-2:]))
    noise = torch.randn(size, generator=generator, device=inputs.device)
    residuals = net(inputs, estimates.sampled_fraction(), noise)
    with torch.autocast(inputs.device.type, enabled=False):
        images = estimates.images(residuals.float()) / scale
        mean, one = images.mean(1, keepdim=True), images[:, :1]
        spread = math.sqrt(math.pi * SAMPLES / (2 * (SAMPLES - 1))) * (images - mean).abs().mean()
        frozen = {name: weight.detach() for name, weight in net.critic.named_parameters()}
        judged = torch.func.functional_call(net.critic, frozen, torch.cat([one, known], dim=1))
        error = (mean - truth).abs().mean() - net.reward.clone() * spread
        if "progress" in batch:
            ratio = (one - truth).detach().square().mean() / (mean - truth).square().mean().detach()
            net.reward += RATE * torch.log(2 * SAMPLES / (SAMPLES + 1) / ratio.clamp_min(1e-6))
        fake = one.detach()
        part = torch.rand((len(fake), 1, 1, 1), generator=generator, device=fake.device)
        mixed = (part * truth + (1 - part) * fake).requires_grad_()
        real, made, between = (net.critic(torch.cat([x, known], 1)) for x in (truth, fake, mixed))
        (slope,) = torch.autograd.grad(between.sum(), mixed, create_graph=True)
        steep = (slope.flatten(1).norm(dim=1) - 1).square().mean()
        critic = made.mean() - real.mean() + PENALTY * steep + DRIFT * real.square().mean()
        return error - ADVERSARIAL * judged.mean() + critic


def train_gan(settings, folder, estimates, **options):
    """Train the GAN and export its generator as a sampler."""

    class Training(type(settings)):
        def recipe(self, cases, machine):
            recipe = super().recipe(cases, machine)
            loss = partial(gan_loss, estimate=recipe.loss.estimate)
            return replace(recipe, network=GAN(self.network), loss=loss)

    estimate = replace(settings.estimate, reuse_from=estimates)
    own = Training(**{**vars(settings), "estimate": estimate, "samples": SAMPLES})
    card = tomllib.loads((best := train(own, folder, **options)).with_suffix(".toml").read_text())
    notes = {key: card[key] for key in card.keys() - {"kind", "network"}}
    load_weights(net := GAN(settings.network), best)
    del net.critic, net.reward
    path, config = folder / "sampler.safetensors", settings.network
    return save_weights(net, path, kind="sampler", config=config, notes=notes)


# Images are in units of the zero-filled image and shifted into [0, 1], as DiffPIR needs them.
GAIN, SHIFT = 0.3, torch.tensor([0.15, 0.5]).view(1, 2, 1, 1)
# Standard deviation of these images; mean and spread of the logarithms of noise levels; noise
# removed from samples; width of the window of the smooth phase, as a fraction of all lines.
DATA, LEVEL, LEVELS, LAST, SMOOTH = 0.1, -2.8, 1.6, 0.005, 1 / 16


@dataclass(frozen=True)
class PriorConfig:
    """Channels of the denoiser at full resolution; those of its levels are multiples of 32."""

    width: int = 48


def build_prior(config):
    from deepinv.models import NCSNpp

    widths = [max(1, round(k * config.width / 32)) for k in range(1, 5)]
    sizes = {"img_resolution": 128, "in_channels": 2, "out_channels": 2, "augment_dim": 0}
    own = {"model_channels": 32, "channel_mult": widths, "num_blocks": 2, "attn_resolutions": (16,)}
    net = NCSNpp("ddpm", **sizes, **own, pixel_std=DATA, pretrained=None)
    return net.to(memory_format=torch.channels_last)


def coil_maps(varnet, kspace, mask):
    """Return sensitivities with the smooth phase of the image, and the unit of each image."""
    maps, zero_filled = varnet.sens_net(kspace, central_lines(mask)), ifft2c(kspace)
    lines = [(torch.arange(n, device=mask.device) - n // 2) / n for n in kspace.shape[-2:]]
    window = torch.outer(*(torch.exp(-((line / SMOOTH) ** 2) / 2) for line in lines))
    phase = ifft2c(window * fft2c((maps.conj() * zero_filled).sum(1))).angle()
    scale = rss(zero_filled).flatten(1).quantile(0.99, dim=1).clamp_min(1e-12)
    return maps * torch.exp(1j * phase)[:, None], scale.view(-1, 1, 1)


@dataclass(frozen=True)
class PriorTraining(RecoveryTraining):
    """Settings of the training of the prior."""

    network: PriorConfig = field(default_factory=PriorConfig)
    augment: Any = None
    estimate: Path = Path()
    prepare = RecoveryTraining.measured

    def recipe(self, cases, machine):  # noqa: D102
        varnet = load(self.estimate).requires_grad_(False)
        values = partial(prior_losses, varnet=varnet, augment=self.augment)
        one = {"kind": "diffusion", "network": build_prior(self.network), "config": self.network}
        return Recipe(**one, loss=lambda *a: values(*a)["loss"].mean(), validate=values)


def prior_losses(net, batch, generator, *, varnet, augment):
    """Return the denoising loss of Karras et al. (NeurIPS 2022) of each case."""
    images, mask = batch["image"], batch["mask"]
    with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
        if augment is not None and "progress" in batch:
            images = augment(images, generator)
        kspace = torch.where(mask[:, None, None], fft2c(images), 0)
        maps, scale = coil_maps(varnet.to(images.device), kspace, mask)
        image = (maps.conj() * images).sum(1) / scale
        x = GAIN * torch.stack([image.real, image.imag], dim=1) + SHIFT.to(mask.device)
    normal = partial(torch.randn, generator=generator, device=x.device)
    sigma = torch.exp(LEVEL + LEVELS * normal((len(x), 1, 1, 1)))
    error = net(x + sigma * normal(x.shape), sigma).float() - x
    weight = (sigma**2 + DATA**2) / (sigma * DATA) ** 2
    return {"loss": (weight * error.square()).mean((1, 2, 3))}


@dataclass(frozen=True, eq=False)
class DiffusionRecovery:
    """Posterior samples by DiffPIR, denoised once more and made consistent with the data."""

    prior: Any
    varnet: Any
    device: Any
    evaluations: int = 100
    strength: float = 7.0
    zeta: float = 0.3
    noise: float = 0.01

    def denoise(self, x, sigma):  # noqa: D102
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            return self.prior(x, torch.as_tensor(sigma, device=x.device)).float()

    @cached_property
    def sampler(self):  # noqa: D102
        from deepinv.optim import L2
        from deepinv.sampling import DiffPIR

        numbers = self.noise, self.evaluations - 1, self.zeta, self.strength
        return DiffPIR(self.denoise, L2(), *numbers, device=self.device)

    @torch.no_grad()
    def __call__(self, measurement, *, samples, seed):
        """Return samples (sample, height, width)."""
        from deepinv.physics import MultiCoilMRI as Physics

        from taskuq.deepinv import DeepinvMeasurement, DeepinvRecover

        kspace, mask = (x[None].to(self.device) for x in (measurement.kspace, measurement.mask))
        maps, scale = coil_maps(self.varnet, kspace, mask)
        size, shift = kspace.shape[-2:], SHIFT.to(self.device)
        physics = Physics(mask[0].float().expand(size), maps, device=self.device, max_iter=10)
        y = torch.view_as_real(GAIN * kspace / scale[..., None]).movedim(-1, 1)
        y = y + physics.A(shift.expand(1, 2, *size))

        def finish(x):
            x = (self.denoise(x, torch.tensor(LAST, device=x.device)) - shift) / GAIN
            coils = fft2c(maps * (scale * torch.complex(x[:, 0], x[:, 1]))[:, None])
            return rss(ifft2c(torch.where(mask[:, None, None], kspace, coils)))

        recover = DeepinvRecover(self.sampler, together=samples, finish=finish)
        return recover(DeepinvMeasurement(y, physics), samples=samples, seed=seed)


@dataclass(frozen=True)
class DiffusionMethod:
    """Settings of [recover]; the tuned values lie next to the weights."""

    weights: Path | None = None

    def open(self, device):
        """Return the recovery on a device."""
        path, net = RECOVERIES.trained("diffusion", self.weights)
        varnet = load(tomllib.loads(path.with_suffix(".toml").read_text())["estimate"])
        tuned = path.with_name("tuned.json")
        values = json.loads(tuned.read_text()) if tuned.exists() else {}
        if torch.device(device).type == "cuda":
            net.compile(dynamic=False)
        return DiffusionRecovery(net.to(device), varnet.to(device), device, **values)


RECOVERIES.add("diffusion", NetworkKind(PriorConfig, build_prior, PriorTraining, DiffusionMethod))
# Network evaluations, strength of the data's term, and share of new noise in each step.
GRID = {"evaluations": (100,), "strength": (3.0, 7.0, 15.0), "zeta": (0.3, 1.0)}


def tune(settings, given):
    """Choose the parameters of DiffPIR by the CRPS of pixels on validation patients."""
    first = DiffusionMethod(given.folder / "best.safetensors").open(given.device)
    data, measure, p = settings.prepare(TrainerOptions())[1], settings.measure, given.samples
    numbers = range(0, len(data), max(1, len(data) // given.cases))[: given.cases]
    images = [data[0, k]["image"].to(given.device) for k in numbers]
    scanner = MultiCoilMRI(measure.masks(images[0].shape[-1]), measure.accelerations)
    found = {}
    for values in product(*GRID.values()):
        chosen, scores = dict(zip(GRID, values, strict=True)), []
        recover, key = replace(first, **chosen), json.dumps(chosen)
        for (number, image), R in product(enumerate(images), measure.accelerations[::2]):
            x, truth = recover(scanner(image, R), samples=p, seed=number), rss(image)
            pairs = (x[:, None] - x).abs().sum((0, 1)) / (2 * p * (p - 1))
            scores.append(float(((x - truth).abs().mean(0) - pairs).mean() / truth.max()))
        found[key] = sum(scores) / len(scores)
        print(f"{found[key]:.5f} {key}", flush=True)
    (given.folder / "tuned.json").write_text(min(found, key=found.get))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("gan", "diffusion", "tune"))
    parser.add_argument("config", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--estimates", type=Path, help="training whose point estimates are used")
    numbers = {"steps": 6000, "batch": 32, "width": 48, "cases": 4, "samples": 8}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args(arguments)
    settings = read_config(NETWORKS["sampler"].training, given.config)
    if given.kind == "tune":
        return tune(settings, given)
    machine = TrainerOptions(accelerator="cpu" if given.device == "cpu" else "gpu")
    cases = settings.prepare(machine)
    epochs = max(1, round(given.steps * given.batch / len(cases[0])))
    training = replace(settings.training, epochs=epochs, batch=given.batch, learning_rate=3e-4)
    if given.kind == "gan":
        own = replace(settings, training=replace(training, betas=(0.0, 0.99), clip_norm=0))
        return train_gan(own, given.folder, given.estimates, machine=machine, cases=cases)
    varnet = given.estimates / "estimate" / "best.safetensors"
    own = PriorConfig(given.width), replace(training, cuda_graphs=False), settings.data
    prior = PriorTraining(*own, settings.measure, settings.augment, varnet)
    return train(prior, given.folder, machine=machine)


if __name__ == "__main__":
    main()
