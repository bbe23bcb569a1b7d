-- Final layer norm and the logits of the next character.
--   stream_{layers} (b, t, c) -> logits (b, t, v)

final_mean AS (
    SELECT b, t, AVG(val) AS val FROM stream_{layers} GROUP BY b, t
),
final_centered AS (
    SELECT x.b, x.t, x.c, x.val - m.val AS val
    FROM stream_{layers} x
    JOIN final_mean m ON x.b = m.b AND x.t = m.t
),
final_variance AS (
    SELECT b, t, AVG(val * val) AS val FROM final_centered GROUP BY b, t
),
final_norm AS (
    SELECT x.b, x.t, x.c, x.val / sqrt(s.val + 1e-5) * w.val AS val
    FROM final_centered x
    JOIN final_variance s ON x.b = s.b AND x.t = s.t
    JOIN ln_final w ON x.c = w.c
),

-- The output weight is the token embedding itself (tied weights).
logits AS (
    SELECT x.b, x.t, w.v, SUM(x.val * w.val) AS val
    FROM final_norm x
    JOIN wte w ON x.c = w.c
    GROUP BY x.b, x.t, w.v
)
