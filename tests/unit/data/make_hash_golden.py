#!/usr/bin/env python3
"""Writes hash_golden.txt: signatures of 64 keys by the law in common/attn/hash.h, from the text of
the law alone (products with the Hadamard matrix, no fast transform). Run it only when the law
changes."""
import struct
import sys

SEED, DIM, K, L, SIZE = 20240917, 100, 10, 150, 128
MASK = (1 << 64) - 1


def rng_at(seed, counter):
    x = (seed + (counter + 1) * 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def value(counter):
    """A multiple of 2^-12 within (-8, 8): exact in f32, and so is every difference."""
    return ((rng_at(SEED + 1, counter) >> 48) - 32768) / 4096.0


def hadamard(x):
    return [sum(-v if bin(i & j).count("1") % 2 else v for j, v in enumerate(x))
            for i in range(len(x))]


def signs(i):
    return [-1 if rng_at(SEED, i * 256 + j) & 1 else 1 for j in range(SIZE)]


def rotate(x, i):
    return hadamard([s * v for s, v in zip(signs(i), x)])


def signature(x):
    x = x + [0.0] * (SIZE - len(x))
    largest = max(abs(v) for v in x)
    e = 0
    if largest > 0:
        while largest * 2.0 ** e <= 32767:
            e += 1
        while largest * 2.0 ** e > 32767:
            e -= 1
    x = [round(v * 2.0 ** e) for v in x]  # half to even
    for i in range(3):
        x = rotate(x, i)
    total, g = sum(abs(v) for v in x), 0
    while total >> g > 32767 - SIZE:
        g += 1
    if g > 0:
        x = [(v + (1 << (g - 1))) >> g for v in x]
    blocks = -(-K * L // SIZE)
    y = [rotate(x, 3 + r) for r in range(blocks)]
    used, codes = [0] * blocks, []
    for t in range(L):
        code = 0
        for j in range(K):
            r = (t + j) % blocks
            if used[r] == SIZE:
                r = used.index(min(used))
            code |= (y[r][used[r]] > 0) << j
            used[r] += 1
        codes.append(code)
    return codes


def main():
    centre = [value(d) for d in range(DIM)]
    out = open(sys.argv[1], "w", encoding="ascii")
    out.write(f"# seed {SEED} dim {DIM} k {K} l {L}: a line a key, four hex digits a table\n")
    for key in range(64):
        row = [value(1000 * (key + 1) + d) for d in range(DIM)]
        if key == 0:
            row = list(centre)
        if key == 1:
            row = [c + (d == 7) for d, c in enumerate(centre)]
        x = [struct.unpack("f", struct.pack("f", k - c))[0] for k, c in zip(row, centre)]
        out.write("".join(f"{code:04x}" for code in signature(x)) + "\n")


main()
