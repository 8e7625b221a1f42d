"""Sort patches into `clusters`: halves along the feature in which they differ most, down to a few alike ones."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from fpmc.engine.simd.columns import aligned
from fpmc.engine.simd.gathering import CLUSTER, gather
from fpmc.engine.simd.vector import KERNEL, LANES, load, splat, store

DIFFER = 512                                            # patches that tell where others differ most


@njit(**KERNEL)
def describe(x, pitch, count, axes, features):
    """features[f·pitch + n] of patch n of x: its coordinates, and the norm of what is left."""
    number, dimension = axes.shape
    step = pitch // LANES
    for v in range(-(-count // LANES)):
        for f in range(number):
            a = splat(np.float32(0))
            for d in range(dimension):
                a = a + splat(axes[f, d]) * load(x, d * step + v)
            store(features, f * step + v, a)
        norm = splat(np.float32(0))
        for d in range(dimension):
            left = load(x, d * step + v)
            for f in range(number):
                left = left - splat(axes[f, d]) * load(features, f * step + v)
            norm = norm + left * left
        store(features, number * step + v, norm)
    for n in range(number * pitch, number * pitch + count):
        features[n] = math.sqrt(features[n])


@njit(**KERNEL)
def widest(features, pitch, order, begin, end):
    """The feature that varies most among order[begin:end]."""
    step, best, chosen = max(1, (end - begin) // DIFFER), -1.0, 0
    for f in range(len(features) // pitch):
        count, first, second = 0, 0.0, 0.0
        for n in range(begin, end, step):
            v = features[f * pitch + order[n]]
            count, first, second = count + 1, first + v, second + v * v
        spread = second / count - (first / count) ** 2
        if spread > best:
            best, chosen = spread, f
    return chosen


@njit(**KERNEL)
def part(values, order, begin, end, middle):
    """Reorder order[begin:end] so that its values before `middle` are not larger than those from there on."""
    while end - begin > 1:
        pivot = values[order[(begin + end) // 2]]
        i, j = begin, end - 1
        while i <= j:
            while values[order[i]] < pivot:
                i += 1
            while values[order[j]] > pivot:
                j -= 1
            if i <= j:
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if middle <= j:
            end = j + 1
        elif middle >= i:
            begin = i
        else:
            return


@njit(**KERNEL)
def grow(features, pitch, order, feature, value):
    """A balanced tree of halves: node n has children 2n + 1 and 2n + 2."""
    nodes = len(feature)
    begins, ends = np.zeros(2 * nodes + 1, np.int64), np.zeros(2 * nodes + 1, np.int64)
    ends[0] = len(order)
    for node in range(nodes):
        begin, end = begins[node], ends[node]
        middle = (begin + end) // 2
        f = widest(features, pitch, order, begin, end)
        part(features[f * pitch : (f + 1) * pitch], order, begin, end, middle)
        feature[node], value[node] = f, features[f * pitch + order[middle]]
        begins[2 * node + 1], ends[2 * node + 1] = begin, middle
        begins[2 * node + 2], ends[2 * node + 2] = middle, end


@njit(**KERNEL)
def assign(clusters, first, last, q, axes, feature, value, leaf):
    """leaf[n] = the leaf of the tree that patch n belongs to, for places from `first` to `last`."""
    pitch, nodes = 256, len(feature)
    x, features = aligned(axes.shape[1] * pitch), aligned((axes.shape[0] + 1) * pitch)
    for start in range(first, last, pitch):
        count = min(pitch, last - start)
        gather(clusters, start, count, q, x, pitch)
        describe(x, pitch, count, axes, features)
        for n in range(count):
            node = 0
            while node < nodes:
                node = 2 * node + (2 if features[feature[node] * pitch + n] >= value[node] else 1)
            leaf[start + n] = node - nodes


@njit(**KERNEL)
def bound(features, pitch, order, begin, end, low, high, at):
    """The box around order[begin:end]."""
    for f in range(len(features) // pitch):
        least, most = features[f * pitch + order[begin]], features[f * pitch + order[begin]]
        for n in range(begin + 1, end):
            v = features[f * pitch + order[n]]
            least, most = min(least, v), max(most, v)
        low[at + f], high[at + f] = least, most


@njit(**KERNEL)
def split(clusters, begin, end, q, axes, rank, target, low, high):
    """Sort one leaf's places [begin, end) into clusters, of which number n is written to rank[n]."""
    count = end - begin
    if count == 0:
        return
    pitch, number = -(-count // LANES) * LANES, axes.shape[0] + 1
    x, features, order = aligned(axes.shape[1] * pitch), aligned(number * pitch), np.arange(count)
    gather(clusters, begin, count, q, x, pitch)
    describe(x, pitch, count, axes, features)
    begins, ends = [0], [count]
    n = 0
    while len(begins) > 0:
        a, b = begins.pop(), ends.pop()
        if b - a <= CLUSTER:
            to = rank[n]
            target[to * CLUSTER : (to + 1) * CLUSTER] = -1
            for e in range(a, b):
                target[to * CLUSTER + e - a] = clusters.places[begin + order[e]]
            bound(features, pitch, order, a, b, low, high, to * number)
            n += 1
            continue
        middle = a + ((b - a) // 2 + CLUSTER - 1) // CLUSTER * CLUSTER
        f = widest(features, pitch, order, a, b)
        part(features[f * pitch : (f + 1) * pitch], order, a, b, middle)
        begins.append(a)
        ends.append(middle)
        begins.append(middle)
        ends.append(b)


@njit(**KERNEL)
def sort(places, leaf, starts, target):
    """Places in the order of their leaves; starts are where leaves begin, and then where they end."""
    for n in range(len(places)):
        target[starts[leaf[n]]] = places[n]
        starts[leaf[n]] += 1
