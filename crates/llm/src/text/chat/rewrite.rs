//! A template whose every operator pays: the parsed template, with filters of ours around whatever makes or compares values.
//!
//! The engine calls filters, tests, functions and methods by name, so those are replaced in `bounded`. Operators, output and
//! loops it knows itself; here they get the filters named below, whose names no template can spell.
//!
//! Invariant: in what comes out, no operator looks at a value that was not paid for, and none makes one that is not paid
//! for before anything else sees it. Constants are not computed ahead, because a filter is no constant.

use std::collections::BTreeSet;

use minijinja::machinery::Span;
use minijinja::machinery::ast::{
    AutoEscape, BinOp, BinOpKind, Block, Call, CallArg, CallBlock, CallType, Compare, CompareOp, Const, Do,
    EmitExpr, EmitRaw, Expr, Extends, Filter, FilterBlock, ForLoop, FromImport, GetAttr, GetItem, IfCond,
    IfExpr, Import, Include, List, Macro, Map, Set, SetBlock, Spanned, Stmt, Template, Test, Tuple, UnaryOp,
    UnaryOpKind, Var, WithBlock,
};
use minijinja::{Error, ErrorKind, Value};

use crate::text::limits::MAX_TEMPLATE_NESTING;

/// Pays for looking at all of a value.
pub(super) const READ: &str = "=read";
/// Pays for looking at the elements of a value.
pub(super) const SHAPE: &str = "=shape";
/// Pays for finding one element of a value.
pub(super) const FIND: &str = "=find";
/// Pays for a value that was made.
pub(super) const MADE: &str = "=made";
/// Text that is added to markup.
pub(super) const ESCAPED: &str = "=escaped";
/// A product that pays for itself.
pub(super) const PRODUCT: &str = "=product";
/// A part of a text or list that pays for itself. The engine's own panics where there is nothing to go through backwards.
pub(super) const SLICE: &str = "=slice";
/// `loop.cycle`, which in the engine does not expect to be called without arguments.
pub(super) const CYCLE: &str = "=cycle";

/// Bytes of plain text that are written without being paid for, because a step pays for that much.
const SHORT: usize = 64;

/// A template that pays, and the names of attributes that it assigns to.
pub(super) struct Rewritten<'a> {
    pub(super) template: Stmt<'a>,
    pub(super) assigned: BTreeSet<&'a str>,
}

/// Rewrites a parsed template.
pub(super) fn rewrite<'a>(template: &Stmt<'a>) -> Result<Rewritten<'a>, Error> {
    let mut rewriter = Rewriter { depth: 0, assigned: BTreeSet::new() };
    let template = rewriter.stmt(template)?;
    Ok(Rewritten { template, assigned: rewriter.assigned })
}

struct Rewriter<'a> {
    depth: usize,
    assigned: BTreeSet<&'a str>,
}

/// An expression behind one of our filters.
fn through<'a>(filter: &'static str, expr: Expr<'a>) -> Expr<'a> {
    let span = expr.span();
    Expr::Filter(Spanned::new(Filter { name: filter, expr: Some(expr), args: Vec::new() }, span))
}

/// The same, unless it is written in the template itself and so can only be small.
fn paid<'a>(filter: &'static str, expr: Expr<'a>) -> Expr<'a> {
    if matches!(expr, Expr::Const(_)) { expr } else { through(filter, expr) }
}

fn var<'a>(id: &'a str, span: Span) -> Expr<'a> {
    Expr::Var(Spanned::new(Var { id }, span))
}

impl<'a> Rewriter<'a> {
    /// Runs one level deeper. The parser follows only some kinds of nesting with a limit, and the compiler none.
    fn deeper<T>(&mut self, act: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        if self.depth == MAX_TEMPLATE_NESTING {
            return Err(Error::new(ErrorKind::SyntaxError, "it is nested too deeply"));
        }
        self.depth += 1;
        let result = act(self);
        self.depth -= 1;
        result
    }

    fn body(&mut self, body: &[Stmt<'a>]) -> Result<Vec<Stmt<'a>>, Error> {
        body.iter().map(|stmt| self.stmt(stmt)).collect()
    }

    fn stmt(&mut self, stmt: &Stmt<'a>) -> Result<Stmt<'a>, Error> {
        self.deeper(|this| this.stmt_here(stmt))
    }

    fn stmt_here(&mut self, stmt: &Stmt<'a>) -> Result<Stmt<'a>, Error> {
        Ok(match stmt {
            Stmt::Template(s) => {
                let children = self.body(&s.children)?;
                Stmt::Template(Spanned::new(Template { children }, s.span()))
            }
            Stmt::EmitExpr(s) => {
                let expr = self.expr(&s.expr)?;
                // What these write is paid for where it is written.
                let expr = if writes_by_itself(&s.expr) { expr } else { paid(READ, expr) };
                Stmt::EmitExpr(Spanned::new(EmitExpr { expr }, s.span()))
            }
            Stmt::EmitRaw(s) if s.raw.len() <= SHORT => {
                Stmt::EmitRaw(Spanned::new(EmitRaw { raw: s.raw }, s.span()))
            }
            Stmt::EmitRaw(s) => {
                let value = Value::from_safe_string(s.raw.to_owned());
                let expr = through(READ, Expr::Const(Spanned::new(Const { value }, s.span())));
                Stmt::EmitExpr(Spanned::new(EmitExpr { expr }, s.span()))
            }
            Stmt::ForLoop(s) => Stmt::ForLoop(Spanned::new(
                ForLoop {
                    target: self.target(&s.target)?,
                    iter: paid(MADE, self.expr(&s.iter)?),
                    filter_expr: self.maybe(s.filter_expr.as_ref())?,
                    recursive: s.recursive,
                    body: self.body(&s.body)?,
                    else_body: self.body(&s.else_body)?,
                },
                s.span(),
            )),
            Stmt::IfCond(s) => Stmt::IfCond(Spanned::new(
                IfCond {
                    expr: self.expr(&s.expr)?,
                    true_body: self.body(&s.true_body)?,
                    false_body: self.body(&s.false_body)?,
                },
                s.span(),
            )),
            Stmt::WithBlock(s) => {
                let assignment = |(target, expr): &(Expr<'a>, Expr<'a>)| {
                    Ok((self.target(target)?, self.assigned_to(target, expr)?))
                };
                let assignments = s.assignments.iter().map(assignment).collect::<Result<_, Error>>()?;
                Stmt::WithBlock(Spanned::new(WithBlock { assignments, body: self.body(&s.body)? }, s.span()))
            }
            Stmt::Set(s) => {
                let set =
                    Set { target: self.target(&s.target)?, expr: self.assigned_to(&s.target, &s.expr)? };
                Stmt::Set(Spanned::new(set, s.span()))
            }
            Stmt::SetBlock(s) => Stmt::SetBlock(Spanned::new(
                SetBlock {
                    target: self.target(&s.target)?,
                    filter: self.maybe(s.filter.as_ref())?,
                    body: self.body(&s.body)?,
                },
                s.span(),
            )),
            Stmt::AutoEscape(s) => Stmt::AutoEscape(Spanned::new(
                AutoEscape { enabled: self.expr(&s.enabled)?, body: self.body(&s.body)? },
                s.span(),
            )),
            Stmt::FilterBlock(s) => Stmt::FilterBlock(Spanned::new(
                FilterBlock { filter: paid(READ, self.expr(&s.filter)?), body: self.body(&s.body)? },
                s.span(),
            )),
            other => self.rarer(other)?,
        })
    }

    /// Statements about macros and other templates.
    fn rarer(&mut self, stmt: &Stmt<'a>) -> Result<Stmt<'a>, Error> {
        Ok(match stmt {
            Stmt::Macro(s) => Stmt::Macro(self.macro_of(s)?),
            Stmt::CallBlock(s) => Stmt::CallBlock(Spanned::new(
                CallBlock { call: self.call(&s.call)?, macro_decl: self.macro_of(&s.macro_decl)? },
                s.span(),
            )),
            Stmt::Do(s) => Stmt::Do(Spanned::new(Do { call: self.call(&s.call)? }, s.span())),
            Stmt::Block(s) => Stmt::Block(Spanned::new(
                Block { name: s.name, required: s.required, body: self.body(&s.body)? },
                s.span(),
            )),
            Stmt::Import(s) => {
                let import = Import { expr: self.expr(&s.expr)?, name: self.target(&s.name)? };
                Stmt::Import(Spanned::new(import, s.span()))
            }
            Stmt::FromImport(s) => {
                let name = |(name, alias): &(Expr<'a>, Option<Expr<'a>>)| {
                    Ok((self.target(name)?, alias.as_ref().map(|alias| self.target(alias)).transpose()?))
                };
                let names = s.names.iter().map(name).collect::<Result<_, Error>>()?;
                Stmt::FromImport(Spanned::new(FromImport { expr: self.expr(&s.expr)?, names }, s.span()))
            }
            Stmt::Extends(s) => Stmt::Extends(Spanned::new(Extends { name: self.expr(&s.name)? }, s.span())),
            Stmt::Include(s) => Stmt::Include(Spanned::new(
                Include { name: self.expr(&s.name)?, ignore_missing: s.ignore_missing },
                s.span(),
            )),
            Stmt::Continue(s) => Stmt::Continue(Spanned::new(minijinja::machinery::ast::Continue, s.span())),
            Stmt::Break(s) => Stmt::Break(Spanned::new(minijinja::machinery::ast::Break, s.span())),
            _ => return Err(Error::new(ErrorKind::SyntaxError, "a statement that is not known here")),
        })
    }

    fn macro_of(&mut self, s: &Spanned<Macro<'a>>) -> Result<Spanned<Macro<'a>>, Error> {
        Ok(Spanned::new(
            Macro {
                name: s.name,
                args: s.args.iter().map(|arg| self.target(arg)).collect::<Result<_, Error>>()?,
                defaults: self.all(&s.defaults)?,
                body: self.body(&s.body)?,
            },
            s.span(),
        ))
    }

    /// What is assigned to: names, lists of names, attributes.
    fn target(&mut self, target: &Expr<'a>) -> Result<Expr<'a>, Error> {
        match target {
            Expr::List(list) => {
                let items = list.items.iter().map(|item| self.deeper(|this| this.target(item)));
                Ok(Expr::List(Spanned::new(
                    List { items: items.collect::<Result<_, Error>>()? },
                    list.span(),
                )))
            }
            Expr::GetAttr(attr) => {
                self.assigned.insert(attr.name);
                self.expr(target)
            }
            _ => self.expr(target),
        }
    }

    /// What is assigned; taking it apart means looking at it.
    fn assigned_to(&mut self, target: &Expr<'a>, expr: &Expr<'a>) -> Result<Expr<'a>, Error> {
        let expr = self.expr(expr)?;
        Ok(if matches!(target, Expr::List(_)) { paid(MADE, expr) } else { expr })
    }

    fn maybe(&mut self, expr: Option<&Expr<'a>>) -> Result<Option<Expr<'a>>, Error> {
        expr.map(|expr| self.expr(expr)).transpose()
    }

    fn all(&mut self, exprs: &[Expr<'a>]) -> Result<Vec<Expr<'a>>, Error> {
        exprs.iter().map(|expr| self.expr(expr)).collect()
    }

    fn expr(&mut self, expr: &Expr<'a>) -> Result<Expr<'a>, Error> {
        self.deeper(|this| this.expr_here(expr))
    }

    fn read(&mut self, expr: &Expr<'a>) -> Result<Expr<'a>, Error> {
        Ok(paid(READ, self.expr(expr)?))
    }

    fn expr_here(&mut self, expr: &Expr<'a>) -> Result<Expr<'a>, Error> {
        Ok(match expr {
            Expr::Var(s) => var(s.id, s.span()),
            Expr::Const(s) => Expr::Const(Spanned::new(Const { value: s.value.clone() }, s.span())),
            Expr::Slice(s) => {
                let mut bound = |bound: Option<&Expr<'a>>| {
                    let absent = || Expr::Const(Spanned::new(Const { value: Value::from(()) }, s.span()));
                    Ok(CallArg::Pos(self.maybe(bound)?.unwrap_or_else(absent)))
                };
                let bounds = [s.start.as_ref(), s.stop.as_ref(), s.step.as_ref()];
                let args = bounds.map(&mut bound).into_iter().collect::<Result<_, Error>>()?;
                let filter = Filter { name: SLICE, expr: Some(self.expr(&s.expr)?), args };
                Expr::Filter(Spanned::new(filter, s.span()))
            }
            Expr::UnaryOp(s) => {
                // It cannot be copied.
                let op = if matches!(s.op, UnaryOpKind::Not) { UnaryOpKind::Not } else { UnaryOpKind::Neg };
                Expr::UnaryOp(Spanned::new(UnaryOp { op, expr: self.expr(&s.expr)? }, s.span()))
            }
            Expr::BinOp(s) => self.bin_op(s)?,
            Expr::Compare(s) => {
                let op = |op: &CompareOp<'a>| Ok(CompareOp { op: op.op, expr: self.read(&op.expr)? });
                let ops = s.ops.iter().map(op).collect::<Result<_, Error>>()?;
                Expr::Compare(Spanned::new(Compare { expr: self.read(&s.expr)?, ops }, s.span()))
            }
            Expr::IfExpr(s) => Expr::IfExpr(Spanned::new(
                IfExpr {
                    test_expr: self.expr(&s.test_expr)?,
                    true_expr: self.expr(&s.true_expr)?,
                    false_expr: self.maybe(s.false_expr.as_ref())?,
                },
                s.span(),
            )),
            Expr::Filter(s) => {
                let filter = Filter {
                    name: s.name,
                    expr: self.maybe(s.expr.as_ref())?,
                    args: self.args(&s.args, None)?,
                };
                Expr::Filter(Spanned::new(filter, s.span()))
            }
            Expr::Test(s) => {
                let test = Test { name: s.name, expr: self.expr(&s.expr)?, args: self.args(&s.args, None)? };
                Expr::Test(Spanned::new(test, s.span()))
            }
            Expr::GetAttr(s) => {
                Expr::GetAttr(Spanned::new(GetAttr { expr: self.expr(&s.expr)?, name: s.name }, s.span()))
            }
            Expr::GetItem(s) => self.item(s)?,
            Expr::Call(s) => match s.identify_call() {
                CallType::Method(of, "cycle") => {
                    let index = GetAttr { expr: self.expr(of)?, name: "index0" };
                    let index = Expr::GetAttr(Spanned::new(index, s.span()));
                    let filter = Filter { name: CYCLE, expr: Some(index), args: self.args(&s.args, None)? };
                    Expr::Filter(Spanned::new(filter, s.span()))
                }
                _ => Expr::Call(self.call(s)?),
            },
            Expr::List(s) => Expr::List(Spanned::new(List { items: self.all(&s.items)? }, s.span())),
            Expr::Tuple(s) => Expr::Tuple(Spanned::new(Tuple { items: self.all(&s.items)? }, s.span())),
            Expr::Map(s) => {
                let keys = s.keys.iter().map(|key| self.read(key)).collect::<Result<_, Error>>()?;
                Expr::Map(Spanned::new(Map { keys, values: self.all(&s.values)? }, s.span()))
            }
        })
    }

    /// Finding a character of a text means counting from its beginning; finding a key means comparing it.
    fn item(&mut self, s: &Spanned<GetItem<'a>>) -> Result<Expr<'a>, Error> {
        let is_name = matches!(&s.subscript_expr, Expr::Const(key) if key.value.as_str().is_some());
        let of = self.expr(&s.expr)?;
        let of = if is_name { of } else { paid(FIND, of) };
        let item = GetItem { expr: of, subscript_expr: self.read(&s.subscript_expr)? };
        Ok(Expr::GetItem(Spanned::new(item, s.span())))
    }

    fn bin_op(&mut self, s: &Spanned<BinOp<'a>>) -> Result<Expr<'a>, Error> {
        use BinOpKind as Kind;
        let op = |left, right| Expr::BinOp(Spanned::new(BinOp { op: s.op, left, right }, s.span()));
        Ok(match s.op {
            Kind::Eq | Kind::Ne | Kind::Lt | Kind::Lte | Kind::Gt | Kind::Gte | Kind::In => {
                op(self.read(&s.left)?, self.read(&s.right)?)
            }
            Kind::ScAnd | Kind::ScOr => op(self.expr(&s.left)?, self.expr(&s.right)?),
            // Of numbers alone.
            Kind::Sub | Kind::Div | Kind::FloorDiv | Kind::Rem | Kind::Pow => {
                op(self.expr(&s.left)?, self.expr(&s.right)?)
            }
            Kind::Add => {
                let (mut left, mut right) = (self.expr(&s.left)?, self.expr(&s.right)?);
                match (is_markup(&s.left), is_markup(&s.right)) {
                    (true, false) => right = through(ESCAPED, right),
                    (false, true) => left = through(ESCAPED, left),
                    _ => {}
                }
                through(MADE, op(left, right))
            }
            // Makes texts of both sides first.
            Kind::Concat => through(MADE, op(self.read(&s.left)?, self.read(&s.right)?)),
            Kind::Mul => {
                let args = vec![CallArg::Pos(self.expr(&s.right)?)];
                let filter = Filter { name: PRODUCT, expr: Some(self.expr(&s.left)?), args };
                Expr::Filter(Spanned::new(filter, s.span()))
            }
        })
    }

    fn call(&mut self, s: &Spanned<Call<'a>>) -> Result<Spanned<Call<'a>>, Error> {
        // The engine's own method of loops compares what it is given with what it was given before.
        let method = if let CallType::Method(_, name) = s.identify_call() { Some(name) } else { None };
        let expr = match &s.expr {
            // A call of a block, and of a function, is known by the form of this.
            Expr::Var(name) => var(name.id, name.span()),
            Expr::GetAttr(attr) => Expr::GetAttr(Spanned::new(
                GetAttr { expr: self.expr(&attr.expr)?, name: attr.name },
                attr.span(),
            )),
            other => self.expr(other)?,
        };
        Ok(Spanned::new(Call { expr, args: self.args(&s.args, method)? }, s.span()))
    }

    fn args(&mut self, args: &[CallArg<'a>], method: Option<&str>) -> Result<Vec<CallArg<'a>>, Error> {
        let compared = method == Some("changed");
        let arg = |arg: &CallArg<'a>| {
            Ok(match arg {
                CallArg::Pos(expr) if compared => CallArg::Pos(self.read(expr)?),
                CallArg::Pos(expr) => CallArg::Pos(self.expr(expr)?),
                CallArg::Kwarg(name, expr) => CallArg::Kwarg(name, self.expr(expr)?),
                CallArg::PosSplat(expr) if compared => CallArg::PosSplat(self.read(expr)?),
                CallArg::PosSplat(expr) => CallArg::PosSplat(paid(MADE, self.expr(expr)?)),
                CallArg::KwargSplat(expr) => CallArg::KwargSplat(paid(SHAPE, self.expr(expr)?)),
            })
        };
        args.iter().map(arg).collect()
    }
}

/// Whether an expression is text that was marked as `safe`, or has had such text added to it.
fn is_markup(expr: &Expr<'_>) -> bool {
    match expr {
        Expr::Filter(filter) => filter.name == "safe",
        Expr::BinOp(sum) if matches!(sum.op, BinOpKind::Add) => is_markup(&sum.left) || is_markup(&sum.right),
        _ => false,
    }
}

/// Whether an expression writes its text where it stands, so that there is no value: it must keep its form.
fn writes_by_itself(expr: &Expr<'_>) -> bool {
    let Expr::Call(call) = expr else { return false };
    match call.identify_call() {
        CallType::Function("super") => call.args.is_empty(),
        CallType::Function("loop") => call.args.len() == 1,
        CallType::Block(_) => true,
        _ => false,
    }
}
