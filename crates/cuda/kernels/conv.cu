// Convolutions, unfolded, direct and transposed; pooling; images at other extents. A thread has one element of the result.
#include "base.cuh"

struct ConvParams {
    Tensor kernel, image, y;
    i64 count;
    i64 stride[3], pad[3], dilation[3];
    i64 channels;
    i64 batch;
    i32 lines;  // over lines instead of planes
    i32 unused;
};

DEVICE void store_real(const Tensor& y, i64 n, float value) { store((u8*)y.data + n * (y.type == F32 ? 4 : 2), y.type, value); }
DEVICE float rounded_as(float value, i32 type) { return type == F16 ? from_half(to_half(value)) : value; }

// y[ic kh kw, ow, oh, n], packed; over lines y[ic kw, ow, n].
KERNEL(im2col, ConvParams, 256) {
    wait_for_previous();
    i64 kw = p.kernel.ne[0], kh = p.lines ? 1 : p.kernel.ne[1];
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        i64 m = n, column = m % p.y.ne[0];
        m /= p.y.ne[0];
        i64 ow = m % p.y.ne[1];
        m /= p.y.ne[1];
        i64 oh = p.lines ? 0 : m % p.y.ne[2], b = p.lines ? m : m / p.y.ne[2];
        i64 kx = column % kw, ky = column / kw % kh, ic = column / (kw * kh);
        i64 x = ow * p.stride[0] + kx * p.dilation[0] - p.pad[0], y = p.lines ? 0 : oh * p.stride[1] + ky * p.dilation[1] - p.pad[1];
        i64 height = p.lines ? 1 : p.image.ne[1];
        float value = 0.0f;
        if (x >= 0 && x < p.image.ne[0] && y >= 0 && y < height) {
            const u8* from = p.lines ? at(p.image, x, ic, b, 0) : at(p.image, x, y, ic, b);
            value = load(from, p.image.type);
        }
        store_real(p.y, n, value);
    }
}

// The gradient: y is an image, `image` the gradient of its columns, packed.
KERNEL(im2col_back, ConvParams, 256) {
    wait_for_previous();
    i64 kw = p.kernel.ne[0], kh = p.lines ? 1 : p.kernel.ne[1];
    i64 ow_count = p.image.ne[1], oh_count = p.lines ? 1 : p.image.ne[2];
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        i64 m = n, x = m % p.y.ne[0];
        m /= p.y.ne[0];
        i64 y = p.lines ? 0 : m % p.y.ne[1];
        if (!p.lines) m /= p.y.ne[1];
        i64 channels = p.lines ? p.y.ne[1] : p.y.ne[2], ic = m % channels, b = m / channels;
        float sum = 0.0f;
        for (i64 ky = 0; ky < kh; ky++) {
            i64 up = p.lines ? 0 : y + p.pad[1] - ky * p.dilation[1];
            if (!p.lines && (up < 0 || up % p.stride[1])) continue;
            i64 oh = p.lines ? 0 : up / p.stride[1];
            if (oh >= oh_count) continue;
            for (i64 kx = 0; kx < kw; kx++) {
                i64 left = x + p.pad[0] - kx * p.dilation[0];
                if (left < 0 || left % p.stride[0]) continue;
                i64 ow = left / p.stride[0];
                if (ow >= ow_count) continue;
                i64 column = (ic * kh + ky) * kw + kx;
                sum += ((const float*)p.image.data)[((b * oh_count + oh) * ow_count + ow) * p.image.ne[0] + column];
            }
        }
        ((float*)p.y.data)[n] = sum;
    }
}

// y[ic kd kh kw, ow, oh, od n], packed; channels share dimension 3 of the image with the batch.
KERNEL(im2col_3d, ConvParams, 256) {
    wait_for_previous();
    i64 kw = p.kernel.ne[0], kh = p.kernel.ne[1], kd = p.kernel.ne[2], od_count = p.y.ne[3] / p.batch;
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        i64 m = n, column = m % p.y.ne[0];
        m /= p.y.ne[0];
        i64 ow = m % p.y.ne[1];
        m /= p.y.ne[1];
        i64 oh = m % p.y.ne[2];
        m /= p.y.ne[2];
        i64 od = m % od_count, b = m / od_count;
        i64 kx = column % kw, ky = column / kw % kh, kz = column / (kw * kh) % kd, ic = column / (kw * kh * kd);
        i64 x = ow * p.stride[0] + kx * p.dilation[0] - p.pad[0];
        i64 y = oh * p.stride[1] + ky * p.dilation[1] - p.pad[1];
        i64 z = od * p.stride[2] + kz * p.dilation[2] - p.pad[2];
        bool inside = x >= 0 && x < p.image.ne[0] && y >= 0 && y < p.image.ne[1] && z >= 0 && z < p.image.ne[2];
        store_real(p.y, n, inside ? load(at(p.image, x, y, z, b * p.channels + ic), p.image.type) : 0.0f);
    }
}

// y[t, o] = sum of a[o k, tau] with tau stride + k = t + crop
KERNEL(col2im_1d, ConvParams, 256) {
    wait_for_previous();
    i64 taps = p.image.ne[0] / p.channels, count = p.image.ne[1];
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        i64 t = n % p.y.ne[0] + p.pad[0], o = n / p.y.ne[0];
        i64 first = t < taps ? 0 : (t - taps) / p.stride[0] + 1;
        float sum = 0.0f;
        for (i64 tau = first; tau < count && tau * p.stride[0] <= t; tau++) {
            sum += load(at(p.image, o * taps + t - tau * p.stride[0], tau, 0, 0), p.image.type);
        }
        store_real(p.y, n, sum);
    }
}

// Direct: kernel [kw, kh, ic, oc], image [w, h, ic, n].
KERNEL(conv_2d, ConvParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index o = place_of(n, p.y.ne);
        float sum = 0.0f;
        for (i64 ic = 0; ic < p.kernel.ne[2]; ic++) {
            for (i64 ky = 0; ky < p.kernel.ne[1]; ky++) {
                i64 y = o.i1 * p.stride[1] + ky * p.dilation[1] - p.pad[1];
                if (y < 0 || y >= p.image.ne[1]) continue;
                for (i64 kx = 0; kx < p.kernel.ne[0]; kx++) {
                    i64 x = o.i0 * p.stride[0] + kx * p.dilation[0] - p.pad[0];
                    if (x < 0 || x >= p.image.ne[0]) continue;
                    float value = rounded_as(*(const float*)at(p.image, x, y, ic, o.i3), p.kernel.type);
                    sum += value * load(at(p.kernel, kx, ky, ic, o.i2), p.kernel.type);
                }
            }
        }
        *(float*)at(p.y, o.i0, o.i1, o.i2, o.i3) = sum;
    }
}

// Direct: kernel [kw, kh, kd, c oc], image [w, h, d, c n], y [ow, oh, od, oc n].
KERNEL(conv_3d, ConvParams, 256) {
    wait_for_previous();
    i64 filters = p.y.ne[3] / p.batch;
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index o = place_of(n, p.y.ne);
        i64 filter = o.i3 % filters, b = o.i3 / filters;
        float sum = 0.0f;
        for (i64 ic = 0; ic < p.channels; ic++) {
            for (i64 kz = 0; kz < p.kernel.ne[2]; kz++) {
                i64 z = o.i2 * p.stride[2] + kz * p.dilation[2] - p.pad[2];
                if (z < 0 || z >= p.image.ne[2]) continue;
                for (i64 ky = 0; ky < p.kernel.ne[1]; ky++) {
                    i64 y = o.i1 * p.stride[1] + ky * p.dilation[1] - p.pad[1];
                    if (y < 0 || y >= p.image.ne[1]) continue;
                    for (i64 kx = 0; kx < p.kernel.ne[0]; kx++) {
                        i64 x = o.i0 * p.stride[0] + kx * p.dilation[0] - p.pad[0];
                        if (x < 0 || x >= p.image.ne[0]) continue;
                        float value = rounded_as(*(const float*)at(p.image, x, y, z, b * p.channels + ic), p.kernel.type);
                        sum += value * load(at(p.kernel, kx, ky, kz, filter * p.channels + ic), p.kernel.type);
                    }
                }
            }
        }
        *(float*)at(p.y, o.i0, o.i1, o.i2, o.i3) = sum;
    }
}

// Depthwise: kernel [kw, kh, 1, c], image [w, h, c, n].
KERNEL(conv_2d_dw, ConvParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index o = place_of(n, p.y.ne);
        float sum = 0.0f;
        for (i64 ky = 0; ky < p.kernel.ne[1]; ky++) {
            i64 y = o.i1 * p.stride[1] + ky * p.dilation[1] - p.pad[1];
            if (y < 0 || y >= p.image.ne[1]) continue;
            for (i64 kx = 0; kx < p.kernel.ne[0]; kx++) {
                i64 x = o.i0 * p.stride[0] + kx * p.dilation[0] - p.pad[0];
                if (x < 0 || x >= p.image.ne[0]) continue;
                sum += *(const float*)at(p.image, x, y, o.i2, o.i3) * load(at(p.kernel, kx, ky, 0, o.i2), p.kernel.type);
            }
        }
        *(float*)at(p.y, o.i0, o.i1, o.i2, o.i3) = sum;
    }
}

// Kernel [k, oc, ic], image [l, ic], y [(l - 1) s + k, oc].
KERNEL(conv_transpose_1d, ConvParams, 256) {
    wait_for_previous();
    i64 taps = p.kernel.ne[0];
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        i64 x = n % p.y.ne[0], o = n / p.y.ne[0];
        i64 first = x < taps ? 0 : (x - taps) / p.stride[0] + 1;
        float sum = 0.0f;
        for (i64 t = first; t < p.image.ne[0] && t * p.stride[0] <= x; t++) {
            for (i64 ic = 0; ic < p.kernel.ne[2]; ic++) {
                float value = rounded_as(*(const float*)at(p.image, t, ic, 0, 0), p.kernel.type);
                sum += value * load(at(p.kernel, x - t * p.stride[0], o, ic, 0), p.kernel.type);
            }
        }
        *(float*)at(p.y, x, o, 0, 0) = sum;
    }
}

// Kernel [kw, kh, oc, ic], image [w, h, ic, n].
KERNEL(conv_transpose_2d, ConvParams, 256) {
    wait_for_previous();
    i64 kw = p.kernel.ne[0], kh = p.kernel.ne[1], s = p.stride[0];
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index o = place_of(n, p.y.ne);
        i64 first_x = o.i0 < kw ? 0 : (o.i0 - kw) / s + 1, first_y = o.i1 < kh ? 0 : (o.i1 - kh) / s + 1;
        float sum = 0.0f;
        for (i64 y = first_y; y < p.image.ne[1] && y * s <= o.i1; y++) {
            for (i64 x = first_x; x < p.image.ne[0] && x * s <= o.i0; x++) {
                for (i64 ic = 0; ic < p.kernel.ne[3]; ic++) {
                    float value = rounded_as(*(const float*)at(p.image, x, y, ic, o.i3), p.kernel.type);
                    sum += value * load(at(p.kernel, o.i0 - x * s, o.i1 - y * s, o.i2, ic), p.kernel.type);
                }
            }
        }
        *(float*)at(p.y, o.i0, o.i1, o.i2, o.i3) = sum;
    }
}

struct PoolParams {
    Tensor a, y, gradient;
    i64 count;
    i64 kernel[2], stride[2], pad[2];
    i32 mean;
    i32 lines;
};

DEVICE void window_of(const PoolParams& p, int axis, i64 position, i64 length, i64& first, i64& end) {
    i64 start = position * p.stride[axis] - p.pad[axis];
    first = at_least(start, 0);
    end = at_most(start + p.kernel[axis], length);
}

// A mean over lines counts what is inside; one over planes always divides by the size of the window.
KERNEL(pool, PoolParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index o = place_of(n, p.y.ne);
        i64 x0, x1, y0 = o.i1, y1 = o.i1 + 1;
        window_of(p, 0, o.i0, p.a.ne[0], x0, x1);
        if (!p.lines) window_of(p, 1, o.i1, p.a.ne[1], y0, y1);
        float value = p.mean ? 0.0f : -3.4028234663852886e38f;
        for (i64 y = y0; y < y1; y++) {
            for (i64 x = x0; x < x1; x++) {
                float v = load(at(p.a, x, y, o.i2, o.i3), p.a.type);
                value = p.mean ? value + v : v > value ? v : value;
            }
        }
        if (p.mean) {
            i64 inside = at_least(x1 - x0, 0);
            value /= p.lines ? (float)at_least(inside, 1) : (float)(p.kernel[0] * p.kernel[1]);
        }
        *(float*)at(p.y, o.i0, o.i1, o.i2, o.i3) = value;
    }
}

// A thread has a pixel, and looks at all windows that see it, in their order.
KERNEL(pool_back, PoolParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index o = place_of(n, p.y.ne);
        float sum = 0.0f;
        for (i64 py = 0; py < p.gradient.ne[1]; py++) {
            i64 y0, y1;
            window_of(p, 1, py, p.a.ne[1], y0, y1);
            if (o.i1 < y0 || o.i1 >= y1) continue;
            for (i64 px = 0; px < p.gradient.ne[0]; px++) {
                i64 x0, x1;
                window_of(p, 0, px, p.a.ne[0], x0, x1);
                if (o.i0 < x0 || o.i0 >= x1) continue;
                float gradient = *(const float*)at(p.gradient, px, py, o.i2, o.i3);
                if (p.mean) {
                    sum += gradient / (float)(p.kernel[0] * p.kernel[1]);
                    continue;
                }
                float most = -3.4028234663852886e38f;
                i64 mx = -1, my = -1;
                for (i64 y = y0; y < y1; y++) {
                    for (i64 x = x0; x < x1; x++) {
                        float v = load(at(p.a, x, y, o.i2, o.i3), p.a.type);
                        if (v > most) most = v, mx = x, my = y;
                    }
                }
                if (mx == o.i0 && my == o.i1) sum += gradient;
            }
        }
        ((float*)p.y.data)[n] = sum;
    }
}

enum Scaling : i32 { NEAREST, BILINEAR, BICUBIC, ANTIALIASED };

struct UpscaleParams {
    Tensor a, y;
    i64 count;
    float factor[4];
    float offset;
    i32 mode;
};

DEVICE i64 clamped(i64 i, i64 ne) { return i < 0 ? 0 : i >= ne ? ne - 1 : i; }
DEVICE float pixel(const UpscaleParams& p, i64 x, i64 y, i64 z, i64 n) { return *(const float*)at(p.a, x, y, z, n); }
DEVICE void cubic(float x, float* w) {
    const float A = -0.75f;
    float far0 = x + 1.0f, far1 = 2.0f - x, near1 = 1.0f - x;
    w[0] = ((A * far0 - 5.0f * A) * far0 + 8.0f * A) * far0 - 4.0f * A;
    w[1] = ((A + 2.0f) * x - (A + 3.0f)) * x * x + 1.0f;
    w[2] = ((A + 2.0f) * near1 - (A + 3.0f)) * near1 * near1 + 1.0f;
    w[3] = ((A * far1 - 5.0f * A) * far1 + 8.0f * A) * far1 - 4.0f * A;
}

KERNEL(upscale, UpscaleParams, 256) {
    wait_for_previous();
    for (i64 n = thread_number(); n < p.count; n += thread_count()) {
        Index o = place_of(n, p.y.ne);
        // Which pixels are taken is decided by 32-bit divisions, as everywhere.
        i64 z = clamped((i64)__fdiv_rn((float)o.i2, p.factor[2]), p.a.ne[2]);
        i64 b = clamped((i64)__fdiv_rn((float)o.i3, p.factor[3]), p.a.ne[3]);
        float value = 0.0f;
        if (p.mode == NEAREST) {
            i64 x = clamped((i64)__fdiv_rn((float)o.i0, p.factor[0]), p.a.ne[0]);
            i64 y = clamped((i64)__fdiv_rn((float)o.i1, p.factor[1]), p.a.ne[1]);
            value = pixel(p, x, y, z, b);
        } else if (p.mode == ANTIALIASED) {
            float cx = __fdiv_rn((float)o.i0 + p.offset, p.factor[0]), cy = __fdiv_rn((float)o.i1 + p.offset, p.factor[1]);
            float sx = fmaxf(__fdiv_rn(1.0f, p.factor[0]), 1.0f), sy = fmaxf(__fdiv_rn(1.0f, p.factor[1]), 1.0f);
            i64 x0 = (i64)fmaxf(cx - sx + p.offset, 0.0f), x1 = at_most((i64)(cx + sx + p.offset), p.a.ne[0]);
            i64 y0 = (i64)fmaxf(cy - sy + p.offset, 0.0f), y1 = at_most((i64)(cy + sy + p.offset), p.a.ne[1]);
            float total = 0.0f, nx = 1.0f / sx, ny = 1.0f / sy;
            for (i64 y = y0; y < y1; y++) {
                float height = fmaxf(1.0f - fabsf(((float)y - cy + p.offset) * ny), 0.0f);
                for (i64 x = x0; x < x1; x++) {
                    float weight = fmaxf(1.0f - fabsf(((float)x - cx + p.offset) * nx), 0.0f) * height;
                    if (weight > 0.0f) value += pixel(p, x, y, z, b) * weight, total += weight;
                }
            }
            if (total > 0.0f) value /= total;
        } else {
            float fx = __fsub_rn(__fdiv_rn((float)o.i0 + p.offset, p.factor[0]), p.offset);
            float fy = __fsub_rn(__fdiv_rn((float)o.i1 + p.offset, p.factor[1]), p.offset);
            i64 lx = (i64)floorf(fx), ly = (i64)floorf(fy);
            if (p.mode == BILINEAR) {
                i64 x0 = clamped(lx, p.a.ne[0]), x1 = clamped(lx + 1, p.a.ne[0]);
                i64 y0 = clamped(ly, p.a.ne[1]), y1 = clamped(ly + 1, p.a.ne[1]);
                float dx = fminf(fmaxf(fx - (float)x0, 0.0f), 1.0f), dy = fminf(fmaxf(fy - (float)y0, 0.0f), 1.0f);
                value = pixel(p, x0, y0, z, b) * (1.0f - dx) * (1.0f - dy) + pixel(p, x1, y0, z, b) * dx * (1.0f - dy) +
                        pixel(p, x0, y1, z, b) * (1.0f - dx) * dy + pixel(p, x1, y1, z, b) * dx * dy;
            } else {
                float across[4], down[4];
                cubic(fx - floorf(fx), across), cubic(fy - floorf(fy), down);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float mixed = 0.0f;
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        mixed += pixel(p, clamped(lx + i - 1, p.a.ne[0]), clamped(ly + j - 1, p.a.ne[1]), z, b) * across[i];
                    }
                    value += mixed * down[j];
                }
            }
        }
        *(float*)at(p.y, o.i0, o.i1, o.i2, o.i3) = value;
    }
}
