-- Token and position embedding, the first value of the residual stream.
--   tokens (b, t) -> stream_0 (b, t, c)

embedding AS (
    SELECT tokens.b, tokens.t, wte.c, wte.val + wpe.val AS val
    FROM tokens
    JOIN wte ON tokens.token = wte.v
    JOIN wpe ON tokens.t = wpe.t AND wte.c = wpe.c
),

stream_0 AS (
    SELECT x.b, x.t, x.c,
           x.val * dropout_keep(h.dropout, h.seed, h.step, {embedding_site}, x.b, x.t, x.c) AS val
    FROM embedding x
    CROSS JOIN hyper h
)
