//! Every operation that some dialect has a number for.
//!
//! The order is that of the newest dialect. Older ones lack some of them and number the rest without gaps, so each
//! dialect's table is this list less what it does not know; see [`Dialect::ops`](super::Dialect::ops). Ops that ggml does not
//! have come last and are numbered far away from its own; see [`Dialect::own_ops`](super::Dialect::own_ops).

macro_rules! op_codes {
    (ggml { $($code:ident = $name:literal,)* } own { $($own:ident = $own_name:literal,)* }) => {
        /// An operation on the wire, without its parameters.
        #[expect(missing_docs, reason = "each is an operation by its name")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum OpCode {
            $($code,)*
            $($own,)*
        }

        impl OpCode {
            /// Those of ggml, in the order of the newest dialect.
            pub const GGML: &[OpCode] = &[$(OpCode::$code,)*];

            /// Those that only Oxcart has.
            pub const OWN: &[OpCode] = &[$(OpCode::$own,)*];

            /// The operation with this name.
            pub fn named(name: &str) -> Option<OpCode> {
                OpCode::GGML.iter().chain(OpCode::OWN).copied().find(|code| code.name() == name)
            }

            /// Its name, for example `MUL_MAT`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(OpCode::$code => $name,)*
                    $(OpCode::$own => $own_name,)*
                }
            }
        }
    };
}

op_codes! {
    ggml {
        None = "NONE",
        Dup = "DUP",
        Add = "ADD",
        AddId = "ADD_ID",
        Add1 = "ADD1",
        Acc = "ACC",
        Sub = "SUB",
        Mul = "MUL",
        Div = "DIV",
        Sqr = "SQR",
        Sqrt = "SQRT",
        Log = "LOG",
        Sin = "SIN",
        Cos = "COS",
        Sum = "SUM",
        SumRows = "SUM_ROWS",
        Cumsum = "CUMSUM",
        Mean = "MEAN",
        Argmax = "ARGMAX",
        CountEqual = "COUNT_EQUAL",
        Repeat = "REPEAT",
        RepeatBack = "REPEAT_BACK",
        Concat = "CONCAT",
        SiluBack = "SILU_BACK",
        Norm = "NORM",
        RmsNorm = "RMS_NORM",
        RmsNormBack = "RMS_NORM_BACK",
        GroupNorm = "GROUP_NORM",
        L2Norm = "L2_NORM",
        MulMat = "MUL_MAT",
        MulMatId = "MUL_MAT_ID",
        OutProd = "OUT_PROD",
        Scale = "SCALE",
        Set = "SET",
        Cpy = "CPY",
        Cont = "CONT",
        Reshape = "RESHAPE",
        View = "VIEW",
        Permute = "PERMUTE",
        Transpose = "TRANSPOSE",
        GetRows = "GET_ROWS",
        GetRowsBack = "GET_ROWS_BACK",
        SetRows = "SET_ROWS",
        Diag = "DIAG",
        DiagMaskInf = "DIAG_MASK_INF",
        DiagMaskZero = "DIAG_MASK_ZERO",
        SoftMax = "SOFT_MAX",
        SoftMaxBack = "SOFT_MAX_BACK",
        Rope = "ROPE",
        RopeBack = "ROPE_BACK",
        Clamp = "CLAMP",
        ConvTranspose1d = "CONV_TRANSPOSE_1D",
        Im2col = "IM2COL",
        Im2colBack = "IM2COL_BACK",
        Im2col3d = "IM2COL_3D",
        Col2im1d = "COL2IM_1D",
        Conv2d = "CONV_2D",
        Conv3d = "CONV_3D",
        Conv2dDw = "CONV_2D_DW",
        ConvTranspose2d = "CONV_TRANSPOSE_2D",
        Pool1d = "POOL_1D",
        Pool2d = "POOL_2D",
        Pool2dBack = "POOL_2D_BACK",
        Upscale = "UPSCALE",
        Pad = "PAD",
        PadReflect1d = "PAD_REFLECT_1D",
        Roll = "ROLL",
        Arange = "ARANGE",
        TimestepEmbedding = "TIMESTEP_EMBEDDING",
        Argsort = "ARGSORT",
        TopK = "TOP_K",
        LeakyRelu = "LEAKY_RELU",
        Tri = "TRI",
        Fill = "FILL",
        FlashAttnExt = "FLASH_ATTN_EXT",
        FlashAttnBack = "FLASH_ATTN_BACK",
        SsmConv = "SSM_CONV",
        SsmScan = "SSM_SCAN",
        WinPart = "WIN_PART",
        WinUnpart = "WIN_UNPART",
        GetRelPos = "GET_REL_POS",
        AddRelPos = "ADD_REL_POS",
        RwkvWkv6 = "RWKV_WKV6",
        GatedLinearAttn = "GATED_LINEAR_ATTN",
        RwkvWkv7 = "RWKV_WKV7",
        SolveTri = "SOLVE_TRI",
        GatedDeltaNet = "GATED_DELTA_NET",
        LightningIndexer = "LIGHTNING_INDEXER",
        Dsv4HcComb = "DSV4_HC_COMB",
        Dsv4HcPre = "DSV4_HC_PRE",
        Dsv4HcPost = "DSV4_HC_POST",
        Unary = "UNARY",
        MapCustom1 = "MAP_CUSTOM1",
        MapCustom2 = "MAP_CUSTOM2",
        MapCustom3 = "MAP_CUSTOM3",
        Custom = "CUSTOM",
        CrossEntropyLoss = "CROSS_ENTROPY_LOSS",
        CrossEntropyLossBack = "CROSS_ENTROPY_LOSS_BACK",
        OptStepAdamw = "OPT_STEP_ADAMW",
        OptStepSgd = "OPT_STEP_SGD",
        Glu = "GLU",
    }
    own {
        PagedAttn = "PAGED_ATTN",
    }
}
