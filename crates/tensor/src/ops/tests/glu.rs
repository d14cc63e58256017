use super::*;

#[rustfmt::skip]
pub(super) fn cases() -> Vec<Case> {
    let glu = |kind| Glu { kind, swapped: false };
    let swapped = |kind| Glu { kind, swapped: true };
    let oai = |alpha, limit| glu(GluKind::SwigluOai { alpha, limit });
    let clamp = |limit| glu(GluKind::SwigluClamp { limit });
    vec![
        takes(glu(GluKind::Reglu), &["?[256]"], "f32 f16 bf16"),
        takes(glu(GluKind::Geglu), &["?[256]"], "f32 f16 bf16"),
        takes(glu(GluKind::Swiglu), &["?[256]"], "f32 f16 bf16"),
        takes(glu(GluKind::GegluErf), &["?[256]"], "f32 f16 bf16"),
        takes(glu(GluKind::GegluQuick), &["?[256]"], "f32 f16 bf16"),
        takes(oai(1.702, 7.0), &["?[256]"], "f32"),
        takes(clamp(7.0), &["?[256]"], "f32 f16"),
        takes(glu(GluKind::Swiglu), &["?[256]", "?[256]"], "f32 f16 bf16"),
        takes(glu(GluKind::Swiglu), &["f32[256]", "?[256]"], "f32"),
        takes(oai(1.702, 7.0), &["?[256]", "?[256]"], "f32"),
        takes(clamp(7.0), &["?[256]", "?[256]"], "f32 f16"),
        // Halves of one tensor.
        makes(glu(GluKind::Swiglu), &["f32[8, 3]"], "f32[4, 3]"),
        makes(swapped(GluKind::Swiglu), &["f32[8, 3]"], "f32[4, 3]"),
        makes(glu(GluKind::Geglu), &["f16[9, 3]", "-"], "f16[4, 3]"),
        makes(glu(GluKind::Reglu), &["f32[8, 3, 2]@[4, 64]"], "f32[4, 3, 2]"),
        makes(glu(GluKind::Reglu), &["f32[1, 3]"], "f32[0, 3]"),
        makes(glu(GluKind::Reglu), &["f32[8, 0]"], "f32[4, 0]"),
        refuses(glu(GluKind::Reglu), &["f32[8, 3]@[12, 4]"], "a", "one common distance"),
        refuses(glu(GluKind::Reglu), &["f32[8, 3, 2]@[4, 32, 128]"], "a", "one common distance"),
        refuses(glu(GluKind::Reglu), &["f32[8, 3, 2, 2]@[4, 32, 96, 256]"], "a", "one common distance"),
        // Two tensors.
        makes(glu(GluKind::GegluErf), &["f32[8, 3]", "f32[8, 3]"], "f32[8, 3]"),
        makes(swapped(GluKind::GegluErf), &["f32[8, 3]", "f32[8, 3]"], "f32[8, 3]"),
        makes(glu(GluKind::GegluQuick), &["bf16[8, 3, 2]@[2, 64]", "bf16[8, 3, 2]@[2, 32]"], "bf16[8, 3, 2]"),
        refuses(glu(GluKind::Swiglu), &["f32[8, 3]", "f32[8]"], "gate", "must be [8, 3] like a"),
        refuses(glu(GluKind::Swiglu), &["f32[8, 3]", "f32[4, 3]"], "gate", "must be [8, 3] like a"),
        refuses(glu(GluKind::Swiglu), &["f16[8, 3]", "f32[8, 3]"], "gate", "must be f16, the type of a"),
        refuses(glu(GluKind::Swiglu), &["f32[8, 3]", "f32[8, 3]@[12, 4]"], "gate", "one common distance"),
        refuses(glu(GluKind::Swiglu), &["f32[8, 3, 2]", "f32[8, 3, 2]@[4, 32, 128]"], "gate", "one common distance"),
        refuses(glu(GluKind::Swiglu), &["f32[8, 3]", "f32[8, 3]"], "result", "cannot be computed in place").in_place(),
        refuses(glu(GluKind::Swiglu), &["f16[8, 3]"], "result", "type is f32").typed(DType::F32),
        // Limits.
        makes(oai(f32::NAN, 0.0), &["f32[8]"], "f32[4]"),
        makes(oai(-1.0, f32::INFINITY), &["f32[8]"], "f32[4]"),
        makes(clamp(0.0), &["f16[8]"], "f16[4]"),
        refuses(oai(1.0, -1.0), &["f32[8]"], "limit", "must not be negative"),
        refuses(oai(1.0, f32::NAN), &["f32[8]"], "limit", "is NaN, must not be negative"),
        refuses(clamp(-f32::MIN_POSITIVE), &["f32[8]"], "limit", "must not be negative"),
        refuses(clamp(f32::NAN), &["f32[8]"], "limit", "is NaN"),

        takes(SiluBack, &["?[256]", "?[256]"], "f32 f16"),
        takes(SiluBack, &["f16[256]", "?[256]"], "f16"),
        makes(SiluBack, &["f32[4, 3, 2]@[4, 32]", "f32[4, 3, 2]@[4, 64]"], "f32[4, 3, 2]"),
        makes(SiluBack, &["f16[4, 0]", "f16[4, 0]"], "f16[4, 0]"),
        refuses(SiluBack, &["f32[4, 3]@[12, 4]", "f32[4, 3]"], "gradient", "one common distance"),
        refuses(SiluBack, &["bf16[4]", "bf16[4]"], "gradient", "type is bf16, must be one of f32, f16"),
        refuses(SiluBack, &["f32[4, 3]", "f32[4, 3]@[12, 4]"], "x", "one common distance"),
        refuses(SiluBack, &["f32[4, 3]", "f32[4]"], "x", "must be [4, 3] like gradient"),
        refuses(SiluBack, &["f32[4, 3]", "f16[4, 3]"], "x", "must be f32, the type of gradient"),
        refuses(SiluBack, &["f32[4]", "f32[4]"], "result", "cannot be computed in place").in_place(),
    ]
}
