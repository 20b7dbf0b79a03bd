"""The fused head equals autograd's own chain in double precision."""

from __future__ import annotations

import torch

from recipe.engines.local.head import token_logprobs


def test_values_and_gradients_equal_the_plain_chain() -> None:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(9, 8, generator=generator, dtype=torch.float64).requires_grad_()
    head = torch.randn(500, 8, generator=generator, dtype=torch.float64).requires_grad_()
    targets = torch.randint(0, 500, (9,), generator=generator)
    upstream = torch.randn(9, generator=generator, dtype=torch.float64)

    logprobs, entropy = token_logprobs(hidden, head, targets)
    ours = torch.autograd.grad(logprobs, (hidden, head), upstream)
    log_softmax = (hidden @ head.T).log_softmax(-1)
    plain = log_softmax.gather(1, targets[:, None])[:, 0]
    theirs = torch.autograd.grad(plain, (hidden, head), upstream, retain_graph=True)

    torch.testing.assert_close(logprobs, plain)
    torch.testing.assert_close(entropy, -(log_softmax.exp() * log_softmax).sum(-1))
    torch.testing.assert_close(ours, theirs)


def test_entropy_over_the_real_vocabulary_is_precise_in_float32() -> None:
    generator = torch.Generator().manual_seed(2)
    hidden, head = torch.randn(5, 32, generator=generator), torch.randn(200_058, 32, generator=generator)
    _, entropy = token_logprobs(hidden, head, torch.zeros(5, dtype=torch.long))
    exact = (hidden.double() @ head.double().T).log_softmax(-1)
    torch.testing.assert_close(entropy.double(), -(exact.exp() * exact).sum(-1), atol=2e-3, rtol=0)
