//! Losses and optimizer steps.

use super::check::same_steps;
use super::work::{sum, times};
use super::{Args, Category, OpError, OpInfo, Operand, Operation, Outcome, Sizes, need};
use crate::dtype::DType;
use crate::error::Error;
use crate::graph::{Graph, TensorId};
use crate::shape::Shape;

/// Mean cross entropy of rows of logits against rows of target probabilities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropyLoss;

/// Gradient of [`CrossEntropyLoss`] with respect to the logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropyLossBack;

/// One AdamW step; updates the parameter and both moments in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptStepAdamw;

/// One step of stochastic gradient descent; updates the parameter in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptStepSgd;

impl Operation for CrossEntropyLoss {
    const INFO: OpInfo =
        OpInfo::new("CROSS_ENTROPY_LOSS", Category::Training, &[need("logits"), need("targets")]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [logits, targets] = args.sources();
        logits.f32()?;
        targets.f32()?;
        targets.same_shape(&logits)?;
        logits.contiguous_rows()?;
        targets.contiguous_rows()?;
        args.fresh(DType::F32, Shape::SCALAR)
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sum([times([3, sizes.source(0)]), sizes.rows(0)])
    }
}

impl Operation for CrossEntropyLossBack {
    const INFO: OpInfo = OpInfo::new(
        "CROSS_ENTROPY_LOSS_BACK",
        Category::Training,
        &[need("gradient"), need("logits"), need("targets")],
    );

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [gradient, logits, targets] = args.sources();
        for operand in [&gradient, &logits, &targets] {
            operand.f32()?;
            operand.contiguous()?;
        }
        gradient.shape_is(Shape::SCALAR, "one number")?;
        targets.same_shape(&logits)?;
        args.fresh(DType::F32, logits.ne())
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        times([3, sizes.result()])
    }
}

/// Tensors that are walked with the parameter's own strides.
fn check_alongside(parameter: &Operand, others: &[Operand]) -> Result<(), OpError> {
    parameter.f32()?;
    parameter.is_param()?;
    parameter.contiguous_rows()?;
    for other in others {
        other.f32()?;
        other.same_shape(parameter)?;
        let same = same_steps(&other.layout(), &parameter.layout());
        other.stride_rule(same, "must be those of the parameter")?;
    }
    Ok(())
}

fn check_settings(settings: &Operand, count: usize) -> Result<(), OpError> {
    settings.f32()?;
    settings.shape_is(count, "the optimizer's numbers")?;
    settings.contiguous()
}

impl Operation for OptStepAdamw {
    const INFO: OpInfo = OpInfo::new(
        "OPT_STEP_ADAMW",
        Category::Training,
        &[need("parameter"), need("gradient"), need("m"), need("v"), need("settings")],
    )
    .also_writes(&[2, 3]);

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [parameter, gradient, m, v, settings] = args.sources();
        check_alongside(&parameter, &[gradient, m, v])?;
        check_settings(&settings, 7)?;
        Ok(Outcome::changed(&Self::INFO, &parameter))
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Operation for OptStepSgd {
    const INFO: OpInfo = OpInfo::new(
        "OPT_STEP_SGD",
        Category::Training,
        &[need("parameter"), need("gradient"), need("settings")],
    );

    fn infer(&self, args: &Args<'_>) -> Result<Outcome, OpError> {
        let [parameter, gradient, settings] = args.sources();
        check_alongside(&parameter, &[gradient])?;
        check_settings(&settings, 2)?;
        Ok(Outcome::changed(&Self::INFO, &parameter))
    }

    fn work(&self, sizes: &Sizes) -> u64 {
        sizes.result()
    }
}

impl Graph {
    /// Mean cross entropy of `logits` against `targets`.
    pub fn cross_entropy_loss(&mut self, logits: TensorId, targets: TensorId) -> Result<TensorId, Error> {
        self.apply(CrossEntropyLoss, &[Some(logits), Some(targets)])
    }

    /// Gradient of [`cross_entropy_loss`](Graph::cross_entropy_loss).
    pub fn cross_entropy_loss_back(
        &mut self,
        gradient: TensorId,
        logits: TensorId,
        targets: TensorId,
    ) -> Result<TensorId, Error> {
        self.apply(CrossEntropyLossBack, &[Some(gradient), Some(logits), Some(targets)])
    }

    /// One AdamW step. `settings` holds α, β1, β2, ε, weight decay and the two bias corrections.
    pub fn opt_step_adamw(
        &mut self,
        parameter: TensorId,
        gradient: TensorId,
        [m, v]: [TensorId; 2],
        settings: TensorId,
    ) -> Result<TensorId, Error> {
        self.apply(OptStepAdamw, &[Some(parameter), Some(gradient), Some(m), Some(v), Some(settings)])
    }

    /// One step of gradient descent. `settings` holds α and the weight decay.
    pub fn opt_step_sgd(
        &mut self,
        parameter: TensorId,
        gradient: TensorId,
        settings: TensorId,
    ) -> Result<TensorId, Error> {
        self.apply(OptStepSgd, &[Some(parameter), Some(gradient), Some(settings)])
    }
}
