"""Losses and optimizer steps."""

import numpy as np

from case import Case, near


def probabilities(d, ne):
    scores = np.exp(d.normal(ne, 1.0))
    return scores / scores.sum(axis=-1, keepdims=True)


def cross_entropy_loss(d):
    # The reference takes rows to lie at one common distance.
    ne = d.shape(3000)
    logits = d.tensor("f32", ne, "c1", scale=d.pick((1.0, 5.0)))
    targets = d.tensor("f32", ne, "c1", probabilities(d, ne))
    return Case("CROSS_ENTROPY_LOSS", [logits, targets], near(1e-5, 1e-6), out=("f32", [1]))


def cross_entropy_loss_back(d):
    ne = d.shape(3000)
    gradient = d.tensor("f32", [1], "c", np.full((1, 1, 1, 1), d.pick((1.0, -0.5))))
    logits = d.tensor("f32", ne, "c", scale=1.0)
    targets = d.tensor("f32", ne, "c", probabilities(d, ne))
    tolerance = near(1e-5, 1e-6 / (ne[1] * ne[2] * ne[3]))
    return Case("CROSS_ENTROPY_LOSS_BACK", [gradient, logits, targets], tolerance, out=("f32", ne))


def parameter(d, ne):
    made = d.tensor("f32", ne, "rows", scale=1.0)
    made.param = True
    return made


def opt_step_adamw(d):
    ne = d.shape(3000)
    a = parameter(d, ne)
    gradient, m = d.like(a, scale=1.0), d.like(a, scale=0.1)
    v = d.like(a, np.abs(d.normal(ne, 0.1)))
    rate, beta1, beta2, decay = d.pick((1e-3, 0.1)), 0.9, 0.999, d.pick((0.0, 0.01))
    step = d.between(1, 50)
    numbers = [rate, beta1, beta2, 1e-8, decay, 1 / (1 - beta1**step), 1 / (1 - beta2**step)]
    settings = d.tensor("f32", [7], "c", np.array(numbers).reshape(1, 1, 1, 7))
    sources = [a, gradient, m, v, settings]
    # One step may be as long as rate * m / sqrt(v), and v can be close to zero.
    return Case("OPT_STEP_ADAMW", sources, near(2e-5, 1e-6), alias=0)


def opt_step_sgd(d):
    ne = d.shape(3000)
    a = parameter(d, ne)
    numbers = np.array([d.pick((1e-3, 0.1)), d.pick((0.0, 0.01))]).reshape(1, 1, 1, 2)
    settings = d.tensor("f32", [2], "c", numbers)
    return Case("OPT_STEP_SGD", [a, d.like(a, scale=1.0), settings], near(1e-6, 1e-6), alias=0)


FAMILIES = {
    "cross_entropy_loss": (2, cross_entropy_loss),
    "cross_entropy_loss_back": (2, cross_entropy_loss_back),
    "opt_step_adamw": (3, opt_step_adamw),
    "opt_step_sgd": (2, opt_step_sgd),
}
