-- Negative log-likelihood of each target: the logarithm of the sum of exp(logit) over v, less the
-- logit of the target. The maximum is subtracted and added back to keep exp in range.
--   logits (b, t, v), targets (b, t) -> nll (b, t)

logit_max AS (
    SELECT b, t, MAX(ddx_stop_gradient(val)) AS val FROM logits GROUP BY b, t
),
logit_sum AS (
    SELECT x.b, x.t, SUM(exp(x.val - m.val)) AS val
    FROM logits x
    JOIN logit_max m ON x.b = m.b AND x.t = m.t
    GROUP BY x.b, x.t
),
target_logit AS (
    SELECT x.b, x.t, x.val
    FROM logits x
    JOIN targets y ON x.b = y.b AND x.t = y.t AND x.v = y.token
),
nll AS (
    SELECT z.b, z.t, ln(z.val) + m.val - y.val AS val
    FROM logit_sum z
    JOIN logit_max m ON z.b = m.b AND z.t = m.t
    JOIN target_logit y ON z.b = y.b AND z.t = y.t
)
