"""Convolutions, pools, images and their windows."""

import numpy as np

from case import EXACT, Case, near, nmse
from draw import packed



def positions(image, kernel, stride, pad, dilation):
    return (image + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1


class Window:
    """Strides, pads and dilations that leave at least one position in each of `axes` dimensions."""

    def __init__(self, d, axes, image=9):
        image *= 3 if d.large else 1
        self.kernel = [d.pick((1, 2, 3, 3, 4)) for _ in range(axes)]
        self.stride = [d.pick((1, 1, 2, 3)) for _ in range(axes)]
        self.pad = [d.pick((0, 0, 1, 2)) for _ in range(axes)]
        self.dilation = [d.pick((1, 1, 1, 2)) for _ in range(axes)]
        # As large as the kernel reaches, or larger.
        reach = [max(1, dil * (k - 1) + 1 - 2 * p) for k, p, dil in zip(self.kernel, self.pad, self.dilation)]
        self.image = [r + d.between(0, image) for r in reach]
        shapes = zip(self.image, self.kernel, self.stride, self.pad, self.dilation)
        self.out = [positions(*shape) for shape in shapes]

    def words(self):
        return (*self.stride, *self.pad, *self.dilation)



def im2col(d):
    plane = d.chance(0.6)
    window = Window(d, 2 if plane else 1)
    channels, batch, filters = d.between(1, 4), d.between(1, 3), d.between(1, 3)
    out = d.pick(("f16", "f32"))
    b_type = d.pick(("f32", "f16")) if out == "f16" else "f32"
    kernel_type = d.pick(("f16", "f32"))
    words = window.words()
    if plane:
        kernel = d.tensor(kernel_type, [*window.kernel, channels, filters], "c")
        image = d.tensor(b_type, [*window.image, channels, batch], "planes")
        ne = [channels * window.kernel[0] * window.kernel[1], *window.out, batch]
        words = (*words, 1)
    else:
        kernel = d.tensor(kernel_type, [*window.kernel, channels, filters], "c")
        image = d.tensor(b_type, [*window.image, channels, batch], "rows")
        ne = [channels * window.kernel[0], *window.out, batch]
        words = (words[0], 0, words[1], 0, words[2], 0, 0)
    return Case("IM2COL", [kernel, image], EXACT, out=(out, ne), params=words)


def im2col_back(d):
    plane = d.chance(0.7)
    window = Window(d, 2 if plane else 1)
    channels, batch = d.between(1, 4), d.between(1, 3)
    words = window.words()
    kernel = d.tensor(d.pick(("f32", "f16")), [*window.kernel, channels, 1], "c")
    if plane:
        ne, image = [channels * window.kernel[0] * window.kernel[1], *window.out, batch], [*window.image, channels, batch]
        words = (*words, 1)
    else:
        ne, image = [channels * window.kernel[0], *window.out, batch], [*window.image, channels, batch]
        words = (words[0], 0, words[1], 0, words[2], 0, 0)
    gradient = d.tensor("f32", ne, "c")
    size = float(np.abs(gradient.floats(d.ggml)).max())
    return Case("IM2COL_BACK", [gradient, kernel], near(1e-6, 1e-5 * size), out=("f32", image), params=words)


def im2col_3d(d):
    window = Window(d, 3, image=4)
    channels, batch, filters = d.between(1, 3), d.between(1, 2), d.between(1, 2)
    kernel = d.tensor(d.pick(("f16", "f32")), [*window.kernel, channels * filters], "c")
    image = d.tensor("f32", [*window.image, channels * batch], "rows")
    width = channels * int(np.prod(window.kernel))
    ne = [width, window.out[0], window.out[1], window.out[2] * batch]
    return Case("IM2COL_3D", [kernel, image], EXACT, out=(d.pick(("f16", "f32")), ne), params=(*window.words(), channels))


def col2im_1d(d):
    name = d.pick(("f32", "f16", "bf16"))
    kernel, channels, tokens, stride = d.between(1, 6), d.between(1, 5), d.between(1, 12), d.between(1, 4)
    full = (tokens - 1) * stride + kernel
    crop = d.between(0, (full - 1) // 2)
    a = d.tensor(name, [kernel * channels, tokens], "c", scale=1.0)
    tolerance = near({"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}[name], {"f32": 1e-5, "f16": 5e-3, "bf16": 4e-2}[name])
    out = (name, [full - 2 * crop, channels])
    return Case("COL2IM_1D", [a], tolerance, out=out, params=(stride, channels, crop))


def conv_2d(d):
    window = Window(d, 2)
    channels, filters, batch = d.between(1, 5), d.between(1, 5), d.between(1, 3)
    kernel = d.tensor(d.pick(("f32", "f16")), [*window.kernel, channels, filters], "c", scale=1.0)
    image = d.tensor("f32", [*window.image, channels, batch], "any", scale=1.0)
    out = ("f32", [*window.out, filters, batch])
    return Case("CONV_2D", [kernel, image], sums(kernel, image), out=out, params=window.words())


def sums(kernel, image):
    terms = int(np.prod(kernel.ne[:3]))
    return near(1e-5, 2e-6 * max(1, terms) ** 0.5 * 4)


def conv_3d(d):
    window = Window(d, 3, image=4)
    channels, filters, batch = d.between(1, 3), d.between(1, 3), d.between(1, 2)
    kernel = d.tensor(d.pick(("f32", "f16")), [*window.kernel, channels * filters], "c", scale=1.0)
    image = d.tensor("f32", [*window.image, channels * batch], "any", scale=1.0)
    out = ("f32", [*window.out, filters * batch])
    params = (*window.words(), channels, batch, filters)
    return Case("CONV_3D", [kernel, image], sums(kernel, image), out=out, params=params)


def conv_2d_dw(d):
    window = Window(d, 2)
    channels, batch = d.between(1, 9), d.between(1, 3)
    name = d.pick(("f32", "f16"))
    pixels = d.chance(0.5)
    kernel_ne, image_ne, ne = [*window.kernel, 1, channels], [*window.image, channels, batch], [*window.out, channels, batch]
    if pixels and channels > 1 and min(image_ne[:2]) > 1:
        # Channels fastest, in all three.
        size = d.type(name).bytes
        steps = lambda w, h, unit: [channels * unit, channels * w * unit, unit, channels * w * h * unit]
        kernel_nb = [channels * size, channels * window.kernel[0] * size, channels * size, size]
        kernel = d.place(d.type(name), kernel_ne, kernel_nb)
        d.fill(kernel, d.normal(kernel_ne, 1.0))
        image = d.place(d.type("f32"), image_ne, steps(*window.image, 4))
        d.fill(image, d.normal(image_ne, 1.0))
        out = ("f32", ne, steps(*window.out, 4))
    else:
        kernel, image = d.tensor(name, kernel_ne, "c", scale=1.0), d.tensor("f32", image_ne, "c", scale=1.0)
        out = ("f32", ne)
    return Case("CONV_2D_DW", [kernel, image], near(1e-5, 2e-5), out=out, params=window.words())


def conv_transpose_1d(d):
    k, filters, channels, length, stride = d.between(1, 6), d.between(1, 5), d.between(1, 9), d.between(1, 12), d.between(1, 4)
    kernel = d.tensor(d.pick(("f32", "f16")), [k, filters, channels], "rows", scale=1.0)
    image = d.tensor("f32", [length, channels], "rows", scale=1.0)
    out = ("f32", [(length - 1) * stride + k, filters])
    return Case("CONV_TRANSPOSE_1D", [kernel, image], near(1e-5, 5e-5), out=out, params=(stride, 0, 1))


def conv_transpose_2d(d):
    k0, k1, filters, channels = d.between(1, 4), d.between(1, 4), d.between(1, 4), d.between(1, 6)
    w, h, batch, stride = d.between(1, 7), d.between(1, 7), d.between(1, 2), d.between(1, 3)
    # The reference takes the rows of a kernel to be packed.
    kernel = d.tensor(d.pick(("f32", "f16")), [k0, k1, filters, channels], "planes", scale=1.0)
    image = d.tensor("f32", [w, h, channels, batch], "rows", scale=1.0)
    out = ("f32", [(w - 1) * stride + k0, (h - 1) * stride + k1, filters, batch])
    return Case("CONV_TRANSPOSE_2D", [kernel, image], near(1e-5, 5e-5), out=out, params=(stride,))


def pooled(length, kernel, stride, pad):
    return int(np.float32(np.float32(length + 2 * pad - kernel) / np.float32(stride)) + 1)


def pool_1d(d):
    kernel, stride = d.between(1, 5), d.between(1, 4)
    pad = d.between(0, kernel - 1)
    ne = d.shape(2000, first=kernel + d.between(0, 40))
    a = d.tensor(d.pick(("f32", "f16")), ne, "c1")
    out = ("f32", [pooled(ne[0], kernel, stride, pad)] + ne[1:])
    return Case("POOL_1D", [a], nmse(1e-12), out=out, params=(d.between(0, 1), kernel, stride, pad))


def pool_2d_window(d):
    kernel, stride = [d.between(1, 4), d.between(1, 4)], [d.between(1, 3), d.between(1, 3)]
    pad = [d.between(0, k - 1) for k in kernel]
    most = 60 if d.large else 9
    ne = [k + d.between(0, most) for k in kernel] + [d.between(1, 4), d.between(1, 3)]
    out = [pooled(n, k, s, p) for n, k, s, p in zip(ne, kernel, stride, pad)] + ne[2:]
    return ne, out, (d.between(0, 1), *kernel, *stride, *pad)


def pool_2d(d):
    ne, out, params = pool_2d_window(d)
    dtype = d.type(d.pick(("f32", "f16")))
    nb = packed(dtype, ne)
    if d.chance(0.5):
        nb[1] += dtype.bytes * d.between(0, 3)
        nb[2] = nb[1] * ne[1] + dtype.bytes * d.between(0, 5)
        nb[3] = nb[2] * ne[2]
    a = d.fill(d.place(dtype, ne, nb), d.normal(ne, 1.0))
    return Case("POOL_2D", [a], nmse(1e-12), out=("f32", out), params=params)


def pool_2d_back(d):
    # The reference reads its second source as if it were packed f32.
    ne, out, params = pool_2d_window(d)
    gradient = d.tensor("f32", out, "c", scale=1.0)
    a = d.tensor("f32", ne, "c")
    return Case("POOL_2D_BACK", [gradient, a], near(1e-6, 1e-6), out=("f32", ne), params=params)


def upscale(d):
    mode = d.between(0, 2)
    align, smooth = d.chance(0.4), mode == 1 and d.chance(0.4)
    most = 40 if d.large else 12
    a_ne = [d.between(1, most), d.between(1, most), d.between(1, 3), d.between(1, 2)]
    out = [d.between(1, 2 * most), d.between(1, 2 * most), a_ne[2] * d.pick((1, 1, 2)), a_ne[3] * d.pick((1, 2))]
    if d.chance(0.4):
        out = [n * d.pick((1, 2, 3)) for n in a_ne]
    a = d.tensor("f32", a_ne, "any*", scale=1.0)
    word = mode | (256 if align else 0) | (512 if smooth else 0)
    tolerance = EXACT if mode == 0 else near(1e-5, 2e-5)
    return Case("UPSCALE", [a], tolerance, out=("f32", out), params=(word,))


def win_part(d):
    most = 40 if d.large else 9
    channels, w, h, window = d.between(1, most), d.between(1, 20), d.between(1, 20), d.between(1, 7)
    a = d.tensor("f32", [channels, w, h], "c")
    across, down = -(-w // window), -(-h // window)
    out = ("f32", [channels, window, window, across * down])
    return Case("WIN_PART", [a], EXACT, out=out, params=(across, down, window))


def win_unpart(d):
    most = 40 if d.large else 9
    channels, w, h, window = d.between(1, most), d.between(1, 20), d.between(1, 20), d.between(1, 7)
    count = -(-w // window) * -(-h // window)
    a = d.tensor("f32", [channels, window, window, count], "c")
    return Case("WIN_UNPART", [a], EXACT, out=("f32", [channels, w, h]), params=(window,))


def get_rel_pos(d):
    channels, size = d.between(1, 40), d.between(1, 12)
    a = d.tensor("f16", [channels, 2 * size - 1], "c")
    return Case("GET_REL_POS", [a], EXACT, out=("f16", [channels, size, size]))


def add_rel_pos(d):
    k, n1, n2, n3 = d.between(1, 6), d.between(1, 5), d.between(1, 5), d.between(1, 3)
    a = d.tensor("f32", [k * k, n1 * n2, n3], "c", scale=1.0)
    pw, ph = (d.tensor("f32", [k, n1, n2, n3], "c", scale=1.0) for _ in range(2))
    tolerance = near(1e-6, 1e-6)
    if d.chance(0.4):
        return Case("ADD_REL_POS", [a, pw, ph], tolerance, alias=0, params=(1,))
    return Case("ADD_REL_POS", [a, pw, ph], tolerance, out=("f32", a.ne))


FAMILIES = {
    "im2col": (5, im2col),
    "im2col_back": (3, im2col_back),
    "im2col_3d": (3, im2col_3d),
    "col2im_1d": (3, col2im_1d),
    "conv_2d": (5, conv_2d),
    "conv_3d": (3, conv_3d),
    "conv_2d_dw": (4, conv_2d_dw),
    "conv_transpose_1d": (3, conv_transpose_1d),
    "conv_transpose_2d": (3, conv_transpose_2d),
    "pool_1d": (3, pool_1d),
    "pool_2d": (3, pool_2d),
    "pool_2d_back": (2, pool_2d_back),
    "upscale": (5, upscale),
    "win_part": (2, win_part),
    "win_unpart": (2, win_unpart),
    "get_rel_pos": (1, get_rel_pos),
    "add_rel_pos": (2, add_rel_pos),
}
