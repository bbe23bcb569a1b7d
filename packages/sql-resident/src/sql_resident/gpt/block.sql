-- One transformer block, the residual stream before it to the one after it.
--   stream_{layer} (b, t, c) -> stream_{next_layer} (b, t, c)
-- Dims: b sequence, t position, c channel, h head, d channel within a head, f hidden channel,
--       i query position, j key position. Weights are stacked over layer.

-- Layer norm over c, with a weight and no bias.
attn_mean_{layer} AS (
    SELECT b, t, AVG(val) AS val FROM stream_{layer} GROUP BY b, t
),
attn_centered_{layer} AS (
    SELECT x.b, x.t, x.c, x.val - m.val AS val
    FROM stream_{layer} x
    JOIN attn_mean_{layer} m ON x.b = m.b AND x.t = m.t
),
attn_variance_{layer} AS (
    SELECT b, t, AVG(val * val) AS val FROM attn_centered_{layer} GROUP BY b, t
),
attn_norm_{layer} AS (
    SELECT x.b, x.t, x.c, x.val / sqrt(s.val + 1e-5) * w.val AS val
    FROM attn_centered_{layer} x
    JOIN attn_variance_{layer} s ON x.b = s.b AND x.t = s.t
    JOIN ln_attn w ON x.c = w.c AND w.layer = {layer}
),

-- Query (part 0), key (part 1) and value (part 2) of every head in one contraction over c.
qkv_{layer} AS (
    SELECT x.b, x.t, w.part, w.h, w.d, SUM(x.val * w.val) AS val
    FROM attn_norm_{layer} x
    JOIN attn_qkv w ON x.c = w.c AND w.layer = {layer}
    GROUP BY x.b, x.t, w.part, w.h, w.d
),

-- Causal scores: a query i sees the keys j <= i.
scores_{layer} AS (
    SELECT q.b, q.h, q.t AS i, k.t AS j, SUM(q.val * k.val) / sqrt({head_width}.0) AS val
    FROM qkv_{layer} q
    JOIN qkv_{layer} k ON q.b = k.b AND q.h = k.h AND q.d = k.d
    WHERE q.part = 0 AND k.part = 1 AND k.t <= q.t
    GROUP BY q.b, q.h, q.t, k.t
),

-- Softmax over j. Subtracting the maximum keeps exp in range and cancels out, so no gradient
-- needs to flow through it.
score_max_{layer} AS (
    SELECT b, h, i, MAX(ddx_stop_gradient(val)) AS val FROM scores_{layer} GROUP BY b, h, i
),
score_exp_{layer} AS (
    SELECT s.b, s.h, s.i, s.j, exp(s.val - m.val) AS val
    FROM scores_{layer} s
    JOIN score_max_{layer} m ON s.b = m.b AND s.h = m.h AND s.i = m.i
),
score_sum_{layer} AS (
    SELECT b, h, i, SUM(val) AS val FROM score_exp_{layer} GROUP BY b, h, i
),
attention_{layer} AS (
    SELECT e.b, e.h, e.i, e.j,
           e.val / z.val
               * dropout_keep(h.dropout, h.seed, h.step, {attention_site}, e.b, e.h, e.i, e.j) AS val
    FROM score_exp_{layer} e
    JOIN score_sum_{layer} z ON e.b = z.b AND e.h = z.h AND e.i = z.i
    CROSS JOIN hyper h
),

-- The values, weighted by attention, then mixed over the heads and added to the stream.
mixed_{layer} AS (
    SELECT p.b, p.h, p.i AS t, v.d, SUM(p.val * v.val) AS val
    FROM attention_{layer} p
    JOIN qkv_{layer} v ON p.b = v.b AND p.h = v.h AND p.j = v.t
    WHERE v.part = 2
    GROUP BY p.b, p.h, p.i, v.d
),
attn_projection_{layer} AS (
    SELECT y.b, y.t, w.c, SUM(y.val * w.val) AS val
    FROM mixed_{layer} y
    JOIN attn_out w ON y.h = w.h AND y.d = w.d AND w.layer = {layer}
    GROUP BY y.b, y.t, w.c
),
attended_{layer} AS (
    SELECT x.b, x.t, x.c,
           x.val + y.val
               * dropout_keep(h.dropout, h.seed, h.step, {projection_site}, x.b, x.t, x.c) AS val
    FROM stream_{layer} x
    JOIN attn_projection_{layer} y ON x.b = y.b AND x.t = y.t AND x.c = y.c
    CROSS JOIN hyper h
),

-- Layer norm over c.
mlp_mean_{layer} AS (
    SELECT b, t, AVG(val) AS val FROM attended_{layer} GROUP BY b, t
),
mlp_centered_{layer} AS (
    SELECT x.b, x.t, x.c, x.val - m.val AS val
    FROM attended_{layer} x
    JOIN mlp_mean_{layer} m ON x.b = m.b AND x.t = m.t
),
mlp_variance_{layer} AS (
    SELECT b, t, AVG(val * val) AS val FROM mlp_centered_{layer} GROUP BY b, t
),
mlp_norm_{layer} AS (
    SELECT x.b, x.t, x.c, x.val / sqrt(s.val + 1e-5) * w.val AS val
    FROM mlp_centered_{layer} x
    JOIN mlp_variance_{layer} s ON x.b = s.b AND x.t = s.t
    JOIN ln_mlp w ON x.c = w.c AND w.layer = {layer}
),

-- Two linear maps with an exact GELU between them, added to the stream.
hidden_{layer} AS (
    SELECT x.b, x.t, w.f, SUM(x.val * w.val) AS val
    FROM mlp_norm_{layer} x
    JOIN mlp_in w ON x.c = w.c AND w.layer = {layer}
    GROUP BY x.b, x.t, w.f
),
gelu_{layer} AS (
    SELECT b, t, f, 0.5 * val * (1.0 + erf(val / sqrt(2.0))) AS val FROM hidden_{layer}
),
mlp_projection_{layer} AS (
    SELECT x.b, x.t, w.c, SUM(x.val * w.val) AS val
    FROM gelu_{layer} x
    JOIN mlp_out w ON x.f = w.f AND w.layer = {layer}
    GROUP BY x.b, x.t, w.c
),
-- One row a group: the sum changes nothing. It ends the chain of elementwise steps that the residual
-- stream is; ddx would otherwise go through all of it, back to the embedding, in every layer.
stream_{next_layer} AS (
    SELECT x.b, x.t, x.c,
           SUM(x.val
               + y.val * dropout_keep(h.dropout, h.seed, h.step, {mlp_site}, x.b, x.t, x.c)) AS val
    FROM attended_{layer} x
    JOIN mlp_projection_{layer} y ON x.b = y.b AND x.t = y.t AND x.c = y.c
    CROSS JOIN hyper h
    GROUP BY x.b, x.t, x.c
)
