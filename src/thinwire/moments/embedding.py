"""Embedding: c_z[v] = Σ over the places t with id v of δ_z[t]; only rows that a sample looked up are ever formed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from thinwire.moments.layer import Layer, Setting
from thinwire.moments.rows import Rows, parts, wide


class Lookup(Rows):
    """ids (B, T) and δ (B, T, D). Places with the same sample and id form one segment, summed before it is squared.

    Segments are found by sorting and numbered by counting, so that no size depends on the data: nothing waits for the
    device. Memory: a few times B·T·D, never B·V·D.
    """

    def __init__(self, ids: Tensor, delta: Tensor, vocabulary: int) -> None:
        (self.delta,) = wide(delta)
        self.ids, self.vocabulary = ids, vocabulary
        self.samples, self.shape = len(ids), (vocabulary, delta.shape[-1])
        self.addends = ids.numel()

    def magnitude(self) -> Tensor:
        return Lookup(self.ids, self.delta.abs(), self.vocabulary).total()

    def squares_(self, out: Tensor, beta: int) -> None:
        keys = self._keys(self.ids)
        order = keys.argsort()
        keys = keys[order]
        new = torch.ones_like(keys)
        new[1:] = (keys[1:] != keys[:-1]).to(new.dtype)
        segment = new.cumsum(0) - 1
        sums = torch.zeros_like(self.delta.flatten(0, 1)).index_add_(0, segment, self.delta.flatten(0, 1)[order])
        rows = torch.zeros_like(keys).scatter_(
            0, segment, keys % self.vocabulary
        )  # past the last segment: 0 into row 0
        (out if beta else out.zero_()).index_add_(0, rows, sums.square_())

    def total(self) -> Tensor:
        return self.delta.new_zeros(self.shape).index_add_(0, self.ids.flatten(), self.delta.flatten(0, 1))

    def rows(self, part: slice) -> Tensor:
        ids, delta = self.ids[part], self.delta[part]
        formed = delta.new_zeros(len(ids) * self.vocabulary, self.shape[1])
        return formed.index_add_(0, self._keys(ids), delta.flatten(0, 1)).view(len(ids), *self.shape)

    def part(self, part: slice) -> Lookup:
        return Lookup(self.ids[part], self.delta[part], self.vocabulary)

    def joined(self, uses: Sequence[Rows]) -> Rows:
        """More places of the same samples."""
        alike = [use for use in uses if isinstance(use, Lookup)]
        ids, delta = torch.cat([use.ids for use in alike], dim=1), torch.cat([use.delta for use in alike], dim=1)
        return Lookup(ids, delta, self.vocabulary)

    def _keys(self, ids: Tensor) -> Tensor:
        """One number for each (sample, id)."""
        return (torch.arange(len(ids), device=ids.device)[:, None] * self.vocabulary + ids).flatten()

    def _chunks(self) -> Iterator[slice]:
        return parts(self.samples, self.vocabulary * self.shape[1], self.delta.device)


class EmbeddingLayer(Layer):
    """With padding_idx (whose row has no gradient), scale_grad_by_freq (δ / the id's count in the batch), max_norm."""

    parameters = ("weight",)
    cost = 1.0
    formula = "Σ_z (segment sums of δ_z)²"

    def refusal(self, module: nn.Module) -> str | None:
        if isinstance(module, nn.Embedding) and module.sparse:
            return "makes sparse gradients: set sparse=False"
        return None

    def rows(self, module: nn.Module, name: str, setting: Setting, input: Tensor | None, delta: Tensor) -> Rows:
        assert isinstance(module, nn.Embedding)
        assert input is not None
        ids = input.reshape(len(input), -1).long()
        delta = delta.reshape(*ids.shape, -1)
        (delta,) = wide(delta)
        if module.padding_idx is not None:
            delta = delta.masked_fill((ids == module.padding_idx)[..., None], 0.0)
        if module.scale_grad_by_freq:
            ones = torch.ones_like(ids, dtype=delta.dtype).flatten()
            counts = delta.new_zeros(module.num_embeddings).index_add_(0, ids.flatten(), ones)
            delta = delta / counts[ids][..., None]
        return Lookup(ids, delta, module.num_embeddings)
