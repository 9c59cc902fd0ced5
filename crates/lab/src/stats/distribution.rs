//! Normal distribution and Student's t distribution, for intervals and sample sizes.
//!
//! Both are needed a few times per report, so they are summed from their series and inverted by bisection: exact to far more digits than a
//! report prints, without tables of constants.

/// Probability that a standard normal variable is below `x`.
pub fn normal_cdf(x: f64) -> f64 {
    if x.abs() > 8.0 {
        return if x > 0.0 { 1.0 } else { 0.0 };
    }
    // Φ(x) = ½ + φ(x)·(x + x³/3 + x⁵/(3·5) + …): every term is positive for x > 0, so nothing cancels.
    let (mut term, mut sum, mut divisor) = (x, x, 1.0);
    while term.abs() > 1e-17 {
        divisor += 2.0;
        term *= x * x / divisor;
        sum += term;
    }
    0.5 + sum * (-0.5 * x * x).exp() / (2.0 * core::f64::consts::PI).sqrt()
}

/// The value that a standard normal variable stays below with probability `p`, which must lie in `(0, 1)`.
pub fn normal_quantile(p: f64) -> f64 {
    invert(p, normal_cdf)
}

/// Probability that Student's t with `degrees` degrees of freedom (at least 1) is below `t`.
pub fn student_cdf(t: f64, degrees: usize) -> f64 {
    // With whole degrees of freedom the distribution function is a finite sum in θ = atan(t/√ν).
    let theta = (t / to_f64(degrees).sqrt()).atan();
    let (sin, cos) = theta.sin_cos();
    let within = if degrees % 2 == 1 {
        let (mut term, mut sum, mut k) = (cos, 0.0, 1);
        while k + 2 <= degrees {
            sum += term;
            term *= cos * cos * to_f64(k + 1) / to_f64(k + 2);
            k += 2;
        }
        core::f64::consts::FRAC_2_PI * (theta + sin * sum)
    } else {
        let (mut term, mut sum, mut k) = (1.0, 1.0, 2);
        while k + 2 <= degrees {
            term *= cos * cos * to_f64(k - 1) / to_f64(k);
            sum += term;
            k += 2;
        }
        sin * sum
    };
    f64::midpoint(1.0, within)
}

/// The value that Student's t with `degrees` degrees of freedom stays below with probability `p` in `(0, 1)`.
pub fn student_quantile(p: f64, degrees: usize) -> f64 {
    invert(p, |t| student_cdf(t, degrees))
}

/// Inverse of the increasing function `cdf` at `p`.
fn invert(p: f64, cdf: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (-1.0, 1.0);
    while cdf(low) > p && low > -1e9 {
        low *= 2.0;
    }
    while cdf(high) < p && high < 1e9 {
        high *= 2.0;
    }
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if cdf(middle) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// A count as a number to compute with; counts in this crate are far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts of runs and samples are far below 2^53")]
pub(crate) fn to_f64(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(value: f64, expected: f64, tolerance: f64) {
        assert!((value - expected).abs() <= tolerance, "{value} is not {expected}");
    }

    #[test]
    fn normal_table() {
        close(normal_cdf(0.0), 0.5, 1e-15);
        close(normal_cdf(1.0), 0.841_344_746, 1e-9);
        close(normal_cdf(-2.0), 0.022_750_132, 1e-9);
        close(normal_quantile(0.975), 1.959_963_985, 1e-9);
        close(normal_quantile(0.8), 0.841_621_234, 1e-9);
        close(normal_cdf(9.0), 1.0, 0.0);
    }

    #[test]
    fn student_table() {
        for (degrees, expected) in
            [(1, 12.706_205), (2, 4.302_653), (4, 2.776_445), (5, 2.570_582), (9, 2.262_157), (29, 2.045_230)]
        {
            close(student_quantile(0.975, degrees), expected, 1e-5);
            close(student_quantile(0.025, degrees), -expected, 1e-5);
        }
        close(student_quantile(0.975, 1000), 1.962_339, 1e-5);
    }
}
