"""The supported grammar: every query against DataFusion's rows of the same data."""

import pytest

PROJECTIONS = {
    "all columns": "SELECT * FROM x",
    "a dim alone keeps every row": "SELECT b FROM x",
    "no dims": "SELECT val FROM x",
    "literals": "SELECT 1 AS one, 2.5 AS half, 'text' AS t, true AS yes, b FROM x",
    "null literal": "SELECT NULL AS nothing, b FROM y",
    "arithmetic": "SELECT b, t, val * 2 + n / 3.0 - -k AS r FROM x",
    "integer arithmetic": "SELECT b, t, n * k - n + b AS r, n / 3 AS q, n % 4 AS m FROM x",
    "functions": "SELECT b, t, exp(val) + sqrt(abs(val)) - tanh(val) AS r FROM x",
    "registered functions": "SELECT b, t, erf(val) + log1p(abs(val)) AS r FROM x",
    "dropout": "SELECT b, t, val * dropout_keep(0.5, 3, 4, 1, b, t) AS r FROM x",
    "dropout of computed index": "SELECT b, t, dropout_keep(0.5, 3, 4, 1, b + 1, t) AS r FROM x",
    "comparison": "SELECT b, t, val > 0 AS p, n <= k AS q, k = t AS e, val <> val AS u FROM x",
    "logic": "SELECT b, t, (val > 0 AND NOT flag) OR b = 1 AS r FROM x",
    "case": "SELECT b, t, CASE WHEN val > 1 THEN 1.0 WHEN flag THEN val ELSE -val END AS r FROM x",
    "case without else": "SELECT b, t, CASE WHEN val > 0 THEN val END AS r FROM x",
    "case of integers": "SELECT b, t, CASE WHEN flag THEN n ELSE 0 END AS r FROM x",
    "case of an operand": (
        "SELECT b, t, CASE k WHEN 1 THEN 10 WHEN 2 THEN 20 ELSE k END AS r FROM x"
    ),
    "case with a nullable branch": (
        "SELECT b, t, CASE WHEN flag THEN NULLIF(val, val) ELSE 1 END AS r FROM x"
    ),
    "coalesce": "SELECT b, t, COALESCE(CASE WHEN flag THEN val END, 0.5) AS r FROM x",
    "coalesce of three": (
        "SELECT b, t, COALESCE(CASE WHEN flag THEN val END, CASE WHEN n > 0 THEN 2.0 END, 3.0) AS "
        "r FROM x"
    ),
    "nullif": "SELECT b, t, NULLIF(k, 2) AS r, NULLIF(n, 3) AS s FROM x",
    "is null": (
        "SELECT b, t, NULLIF(k, 2) IS NULL AS r, NULLIF(n, 1) IS NOT NULL AS s, val IS NULL AS u "
        "FROM x"
    ),
    "is true": (
        "SELECT b, t, NULLIF(flag, true) IS TRUE AS r, NULLIF(flag, true) IS NOT FALSE AS s FROM x"
    ),
    "null logic": (
        "SELECT b, t, NULLIF(flag, true) AND val > 0 AS a, NULLIF(flag, true) OR val > 0 AS o, "
        "NOT NULLIF(flag, true) AS n FROM x"
    ),
    "null comparison": "SELECT b, t, NULLIF(n, 2) > 1 AS r, NULLIF(n, 2) = n AS s FROM x",
    "distinct from": (
        "SELECT b, t, NULLIF(n, 2) IS DISTINCT FROM 3 AS r, NULLIF(n, 2) IS NOT DISTINCT FROM NULL "
        "AS s FROM x"
    ),
    "in": "SELECT b, t, k IN (1, 3) AS r, n NOT IN (0, 2, 5, 7) AS s FROM x",
    "in with null": "SELECT b, t, NULLIF(k, 2) IN (1, 3, NULL) AS r FROM x",
    "between": "SELECT b, t, val BETWEEN -0.5 AND 0.5 AS r, n NOT BETWEEN -2 AND 2 AS s FROM x",
    "cast": (
        "SELECT b, t, CAST(n AS DOUBLE) AS r, CAST(flag AS INT) AS s, CAST(b AS FLOAT) AS f FROM x"
    ),
    "renamed": "SELECT t AS b, b AS t, val AS k FROM x",
    "text compared": (
        "SELECT name > 'Bern' AS later, name <= 'Lima' AS up, name = 'Oslo' AS is_oslo FROM city"
    ),
    "texts compared": (
        "SELECT c.name, r.name AS other, c.name < r.name AS lt FROM city c CROSS JOIN river r"
    ),
    "case of text": "SELECT b, NULLIF('a', 'b') AS s, 'a' = 'b' AS f FROM y",
    "date literal": (
        "SELECT time, time >= TIMESTAMP '2024-03-01' AS late, DATE '2024-03-01' AS day FROM grid"
    ),
    "nullif of a dim": "SELECT NULLIF(b, 1) AS r, NULLIF(name, 'Bern') AS s FROM x CROSS JOIN city",
    "null arithmetic": "SELECT b, 1 + NULL AS n, val * NULL AS m, NULL IS NULL AS y FROM y",
    "typed null": "SELECT b, CAST(NULL AS BIGINT) AS n, CAST(NULL AS BOOLEAN) AS f FROM y",
    "case of an operand with nulls": (
        "SELECT CASE NULLIF(k, 1) WHEN NULL THEN 1 WHEN 1 THEN 2 WHEN 3 THEN 4 END AS r FROM x"
    ),
    "twice": "SELECT b, b AS again, val, val AS also FROM x",
    "values over fewer dims": "SELECT b, t, rate FROM x",
    "greatest": "SELECT b, t, greatest(val, rate, 0.0) AS r, least(n, k) AS s FROM x",
    "values": "SELECT * FROM (VALUES (1, 2.5), (3, 4.5)) AS q(a, b)",
    "no from": "SELECT 1 + 1 AS two, 2.0 * 3 AS six",
}

FILTERS = {
    "dim at a position": "SELECT * FROM x WHERE b = 1",
    "dim at no position": "SELECT * FROM x WHERE b = 7",
    "dim equals dim": "SELECT * FROM x WHERE b = t",
    "dim equals column": "SELECT * FROM x WHERE t = k",
    "two equalities": "SELECT * FROM x WHERE b = 1 AND t = 2",
    "contradiction": "SELECT * FROM x WHERE b = 1 AND b = 2",
    "range of a dim": "SELECT * FROM x WHERE t > b AND t < 3",
    "value": "SELECT * FROM x WHERE val > 0.2",
    "boolean": "SELECT * FROM x WHERE flag",
    "negated": "SELECT * FROM x WHERE NOT flag AND n <> 0",
    "or": "SELECT * FROM x WHERE b = 0 OR val > 1",
    "in list": "SELECT * FROM x WHERE t IN (0, 3, 9)",
    "not in list": "SELECT * FROM x WHERE k NOT IN (0, 3, 9)",
    "false": "SELECT * FROM x WHERE false",
    "true": "SELECT * FROM x WHERE true",
    "null": "SELECT * FROM x WHERE NULL",
    "not null": (
        "SELECT q, c FROM (SELECT NULLIF(k, 2) AS q, NULLIF(n, 1) AS c FROM x) r WHERE q IS NOT "
        "NULL"
    ),
    "null is not true": "SELECT * FROM x WHERE NULLIF(n, 1) > 0",
    "column equals literal": "SELECT b, t FROM x WHERE k = 3",
    "expression": "SELECT b, t FROM x WHERE b * 4 + t = k + 5",
    "filter after aggregate": (
        "SELECT * FROM (SELECT b, SUM(val) AS s FROM x GROUP BY b) q WHERE s > 0"
    ),
    "text": "SELECT * FROM city WHERE name = 'Bern'",
    "text unequal": "SELECT * FROM city WHERE name <> 'Bern'",
    "text list": "SELECT * FROM city WHERE name IN ('Bern', 'Rome', 'Oslo')",
    "float coordinate": "SELECT * FROM grid WHERE lat = 2.25",
    "float coordinate range": "SELECT * FROM grid WHERE lat < 1",
    "negative coordinate": "SELECT * FROM neg WHERE i = -1 OR i > 1",
    "gaps": "SELECT * FROM gap WHERE i >= 2",
    "date": "SELECT * FROM grid WHERE time = TIMESTAMP '2024-03-01'",
    "date as date": "SELECT * FROM grid WHERE time = DATE '2024-03-01'",
    "date range": "SELECT * FROM grid WHERE time > TIMESTAMP '2024-01-01'",
    "no dims table": "SELECT * FROM hyper WHERE step > 3",
    "no dims table, none": "SELECT * FROM hyper WHERE step > 30",
    "one row": "SELECT * FROM one WHERE val = val",
    "no rows": "SELECT * FROM zero WHERE val > 0 OR z = 0",
}

JOINS = {
    "all dims": "SELECT x.b, x.t, x.val * y.val AS p FROM x JOIN y ON x.b = y.b AND x.t = y.t",
    "using": "SELECT b, t, x.val + y.val AS p FROM x JOIN y USING (b, t)",
    "natural": "SELECT * FROM (SELECT b, t, n FROM x) NATURAL JOIN y",
    "one dim": "SELECT x.b, x.t, y.t AS u, x.val * y.val AS p FROM x JOIN y ON x.b = y.b",
    "crossed dims": "SELECT x.b, x.t, y.val FROM x JOIN y ON x.b = y.t AND x.t = y.b",
    "gather": "SELECT x.b, x.t, w.c, w.val FROM x JOIN w ON x.k = w.k",
    "gather, column second": "SELECT x.b, x.t, w.c, w.val FROM w JOIN x ON w.k = x.k",
    "gather by unbounded column": "SELECT x.b, x.t, w.c, w.val FROM x JOIN w ON x.n = w.k",
    "gather by expression": "SELECT x.b, x.t, w.c, w.val FROM x JOIN w ON x.k + 1 = w.k",
    "gather with literal": "SELECT x.b, x.t, w.val FROM x JOIN w ON x.k = w.k AND w.c = 1",
    "column to column": "SELECT x.b, x.t, q.b AS b2, q.t AS t2 FROM x JOIN x AS q ON x.k = q.k",
    "cross": "SELECT x.b, x.t, v.c, x.val * v.val AS p FROM x CROSS JOIN v",
    "cross with scalars": "SELECT x.b, x.t, x.val * h.lr AS p FROM x CROSS JOIN hyper h",
    "comma": "SELECT x.b, x.t, v.c FROM x, v WHERE x.t = v.c",
    "inequality": "SELECT x.b, x.t, y.t AS u FROM x JOIN y ON x.b = y.b AND x.t >= y.t",
    "value condition": "SELECT x.b, x.t, v.c FROM x JOIN v ON x.val > v.val",
    "self": "SELECT p.b, p.t, q.t AS u, p.val - q.val AS d FROM x p JOIN x q ON p.b = q.b",
    "self, same rows": (
        "SELECT p.b, p.t, p.val - q.val AS d FROM x p JOIN x q ON p.b = q.b AND p.t = q.t"
    ),
    "three": (
        "SELECT x.b, x.t, v.c, x.val * w.val * v.val AS p FROM x "
        "JOIN w ON x.k = w.k JOIN v ON w.c = v.c"
    ),
    "left, complete": "SELECT x.b, x.t, y.val FROM x LEFT JOIN y ON x.b = y.b AND x.t = y.t",
    "left, some missing": "SELECT x.b, x.t, s.val FROM x LEFT JOIN shifted s ON x.k = s.k",
    "left, many": "SELECT v.c, x.b, x.t FROM v LEFT JOIN x ON v.c = x.b AND x.val > 0.5",
    "left, none": "SELECT x.b, x.t, s.val FROM x LEFT JOIN shifted s ON x.t = s.k AND s.k > 3",
    "left, filter on nulls": (
        "SELECT x.b, x.t FROM x LEFT JOIN shifted s ON x.k = s.k WHERE s.val IS NULL"
    ),
    "left, keys of both": "SELECT x.b, x.t, s.k FROM x LEFT JOIN shifted s ON x.k = s.k",
    "left of filtered": (
        "SELECT a.b, a.t, q.val FROM x a LEFT JOIN (SELECT * FROM y WHERE val > 0) q "
        "ON a.b = q.b AND a.t = q.t"
    ),
    "left with literal": "SELECT v.c, x.val FROM v LEFT JOIN x ON v.c = x.b AND x.t = 2",
    "left with condition on left": (
        "SELECT v.c, w.k, w.val FROM v LEFT JOIN w ON v.c = w.c AND v.val > 0"
    ),
    "left twice": (
        "SELECT n.i, g.val AS g, q.val AS q FROM neg n LEFT JOIN gap g ON n.i = g.i "
        "LEFT JOIN gap q ON g.i = q.i"
    ),
    "right": "SELECT s.k, x.b, x.t, s.val FROM x RIGHT JOIN shifted s ON x.k = s.k",
    "right, complete": "SELECT y.b, y.t, x.val FROM x RIGHT JOIN y ON x.b = y.b AND x.t = y.t",
    "full": "SELECT n.i, g.i AS j, n.val, g.val AS w FROM neg n FULL JOIN gap g ON n.i = g.i",
    "full, conditions": (
        "SELECT n.i, g.i AS j FROM neg n FULL JOIN gap g ON n.i = g.i AND n.val > 0"
    ),
    "semi": "SELECT * FROM x LEFT SEMI JOIN shifted s ON x.k = s.k",
    "anti": "SELECT * FROM x LEFT ANTI JOIN shifted s ON x.k = s.k",
    "right semi": "SELECT * FROM x RIGHT SEMI JOIN shifted s ON x.k = s.k",
    "right anti": "SELECT * FROM x RIGHT ANTI JOIN shifted s ON x.k = s.k",
    "semi with many matches": "SELECT * FROM v LEFT SEMI JOIN x ON v.c = x.b AND x.val > 0",
    "floats": (
        "SELECT g.lat, g.time, g.temp * s.height AS p FROM grid g JOIN stations s ON g.lat = s.lat"
    ),
    "floats left": (
        "SELECT g.lat, g.time, s.height FROM grid g LEFT JOIN stations s ON g.lat = s.lat"
    ),
    "dates": "SELECT g.lat, g.time, h.weight FROM grid g JOIN holidays h ON g.time = h.time",
    "dates full": (
        "SELECT g.lat, g.time, h.time AS day FROM grid g FULL JOIN holidays h ON g.time = h.time"
    ),
    "text": "SELECT c.name, c.people, r.len FROM city c JOIN river r ON c.name = r.name",
    "text full": (
        "SELECT c.name, r.name AS other, r.len FROM city c FULL JOIN river r ON c.name = r.name"
    ),
    "negative starts": "SELECT n.i, n.val, g.val AS w FROM neg n JOIN gap g ON n.i = g.i",
    "ranges overlap": "SELECT w.k, w.c, w.val * s.val AS p FROM w JOIN shifted s ON w.k = s.k",
    "ranges apart": "SELECT v.c, s.val FROM v JOIN shifted s ON v.c = s.k",
    "float dim and integer dim": (
        "SELECT g.lat, g.time, n.val FROM grid g JOIN neg n ON g.lat = n.i"
    ),
    "empty": "SELECT x.b, z.z FROM x JOIN zero z ON x.b = z.z",
    "empty left": "SELECT x.b, x.t, z.val FROM x LEFT JOIN zero z ON x.b = z.z",
    "left of empty": "SELECT z.z, x.b FROM zero z LEFT JOIN x ON x.b = z.z",
    "empty full": "SELECT o.z, z.z AS y FROM one o FULL JOIN zero z ON o.z = z.z",
    "empty cross": "SELECT x.b, z.val FROM x CROSS JOIN zero z",
    "empty anti": "SELECT * FROM v LEFT ANTI JOIN zero z ON v.c = z.z",
    "one": "SELECT x.b, x.t, o.val FROM x JOIN one o ON x.b = o.z",
    "one left": "SELECT x.b, x.t, o.val FROM x LEFT JOIN one o ON x.b = o.z",
    "not distinct": (
        "SELECT a.i, b.i AS j FROM (SELECT NULLIF(i, 2) AS i FROM neg) a "
        "JOIN (SELECT NULLIF(i, 2) AS i FROM gap) b ON a.i IS NOT DISTINCT FROM b.i"
    ),
    "nulls do not match": (
        "SELECT a.i, b.i AS j FROM (SELECT NULLIF(i, 2) AS i FROM neg) a "
        "JOIN (SELECT NULLIF(i, 2) AS i FROM gap) b ON a.i = b.i"
    ),
    "left, nulls do not match": (
        "SELECT a.i, g.val FROM (SELECT NULLIF(i, 2) AS i FROM neg) a LEFT JOIN gap g ON a.i = g.i"
    ),
    "join of aggregates": (
        "SELECT p.b, p.s - q.s AS d FROM (SELECT b, SUM(val) AS s FROM x GROUP BY b) p "
        "JOIN (SELECT b, SUM(val) AS s FROM y GROUP BY b) q ON p.b = q.b"
    ),
    "join of a union": (
        "SELECT q.b, v.val FROM (SELECT b FROM x UNION ALL SELECT t FROM y) q JOIN v ON q.b = v.c"
    ),
    "left join of a union": (
        "SELECT v.c, q.val FROM v LEFT JOIN (SELECT b, val FROM x UNION ALL SELECT t, val FROM y) "
        "q "
        "ON v.c = q.b AND q.val > 0.3"
    ),
}

AGGREGATES = {
    "sum": "SELECT b, SUM(val) AS s FROM x GROUP BY b",
    "all": (
        "SELECT SUM(val) AS s, COUNT(*) AS c, AVG(val) AS a, MIN(val) AS l, MAX(val) AS h FROM x"
    ),
    "every aggregate": (
        "SELECT b, SUM(n) AS s, COUNT(n) AS c, AVG(n) AS a, MIN(n) AS l, MAX(n) AS h, "
        "STDDEV(val) AS sd, VAR_SAMP(val) AS v, STDDEV_POP(val) AS sp, VAR_POP(val) AS vp "
        "FROM x GROUP BY b"
    ),
    "keys in another order": "SELECT t, b, SUM(val) AS s FROM x GROUP BY t, b",
    "key not selected": "SELECT SUM(val) AS s FROM x GROUP BY b",
    "bounded column": "SELECT k, SUM(val) AS s, COUNT(*) AS c FROM x GROUP BY k",
    "bounded column and dim": "SELECT b, k, SUM(val) AS s FROM x GROUP BY b, k",
    "boolean": "SELECT flag, COUNT(*) AS c, SUM(val) AS s FROM x GROUP BY flag",
    "boolean expression": "SELECT val > 0 AS p, COUNT(*) AS c FROM x GROUP BY val > 0",
    "nullable boolean": "SELECT NULLIF(flag, true) AS f, COUNT(*) AS c FROM x GROUP BY 1",
    "nullable key": "SELECT NULLIF(k, 2) AS q, COUNT(*) AS c, SUM(val) AS s FROM x GROUP BY 1",
    "literal key": "SELECT 1 AS one, SUM(val) AS s FROM x GROUP BY 1",
    "dim twice": "SELECT b, b AS again, SUM(val) AS s FROM x GROUP BY b, again",
    "of an expression": "SELECT b, SUM(val * rate + 1) AS s FROM x GROUP BY b",
    "of a dim": "SELECT b, SUM(t) AS s, MAX(t) AS h FROM x GROUP BY b",
    "of a literal": "SELECT b, SUM(2) AS s, COUNT(1) AS c FROM x GROUP BY b",
    "of a value over fewer dims": "SELECT t, SUM(rate) AS s, AVG(rate) AS a FROM x GROUP BY t",
    "of a repeated value": "SELECT b, SUM(rate) AS s, STDDEV(rate) AS d FROM x GROUP BY b",
    "of a boolean": "SELECT b, MIN(flag) AS l, MAX(flag) AS h FROM x GROUP BY b",
    "min of text": "SELECT MIN(people) AS l FROM city",
    "filter clause": (
        "SELECT b, SUM(val) FILTER (WHERE val > 0) AS s, COUNT(*) FILTER (WHERE flag) AS c, "
        "MAX(n) FILTER (WHERE n < 0) AS h, AVG(val) FILTER (WHERE t > 1) AS a FROM x GROUP BY b"
    ),
    "filter clause, nothing": (
        "SELECT b, SUM(val) FILTER (WHERE val > 99) AS s, COUNT(*) FILTER (WHERE val > 99) AS c "
        "FROM x GROUP BY b"
    ),
    "filtered": "SELECT b, SUM(val) AS s, COUNT(*) AS c FROM x WHERE val > 0.3 GROUP BY b",
    "filtered, groups vanish": "SELECT b, SUM(val) AS s FROM x WHERE n > 5 GROUP BY b",
    "filtered by dims": "SELECT b, SUM(val) AS s FROM x WHERE t <= b GROUP BY b",
    "filtered, one row": "SELECT SUM(val) AS s, COUNT(*) AS c, MAX(n) AS h FROM x WHERE val > 99",
    "where false": "SELECT SUM(val) AS s, COUNT(*) AS c, AVG(val) AS a FROM x WHERE false",
    "where false, grouped": "SELECT b, SUM(val) AS s FROM x WHERE false GROUP BY b",
    "of nulls": "SELECT b, SUM(NULLIF(n, n)) AS s, COUNT(NULLIF(n, n)) AS c FROM x GROUP BY b",
    "nulls skipped": (
        "SELECT b, SUM(NULLIF(k, 2)) AS s, COUNT(NULLIF(k, 2)) AS c, AVG(NULLIF(k, 2)) AS a, "
        "MIN(NULLIF(k, 0)) AS l FROM x GROUP BY b"
    ),
    "sample of one": "SELECT b, t, STDDEV(val) AS d, VAR_POP(val) AS p FROM x GROUP BY b, t",
    "having": "SELECT b, SUM(val) AS s FROM x GROUP BY b HAVING SUM(val) > 0 AND COUNT(*) > 1",
    "having on key": "SELECT k, COUNT(*) AS c FROM x GROUP BY k HAVING k > 1",
    "distinct dims": "SELECT DISTINCT b FROM x",
    "distinct column": "SELECT DISTINCT k FROM x",
    "distinct nullable": "SELECT DISTINCT NULLIF(k, 2) AS q, flag FROM x",
    "distinct of union": "SELECT DISTINCT i FROM (SELECT i FROM neg UNION ALL SELECT i FROM gap) q",
    "union": "SELECT i FROM neg UNION SELECT i FROM gap",
    "union of texts": "SELECT name FROM city UNION SELECT name FROM river",
    "count of null": (
        "SELECT b, COUNT(NULL) AS c, COUNT(NULLIF(1, 1)) AS d, COUNT(2) AS e FROM x GROUP BY b"
    ),
    "count distinct": "SELECT COUNT(DISTINCT k) AS c FROM x",
    "distinct in several": "SELECT SUM(DISTINCT k) AS s, AVG(DISTINCT b) AS a, MAX(t) AS h FROM x",
    "count distinct grouped": "SELECT b, COUNT(DISTINCT k) AS c FROM x GROUP BY b",
    "matrix product": (
        "SELECT x.b, w.c, SUM(x.val * w.val) AS s FROM x JOIN w ON x.t = w.k GROUP BY x.b, w.c"
    ),
    "embedding": "SELECT x.b, w.c, SUM(w.val) AS s FROM x JOIN w ON x.k = w.k GROUP BY x.b, w.c",
    "scatter": "SELECT x.k, v.c, SUM(x.val * v.val) AS s FROM x CROSS JOIN v GROUP BY x.k, v.c",
    "gram": (
        "SELECT p.t, q.t AS u, SUM(p.val * q.val) AS s FROM x p JOIN x q ON p.b = q.b GROUP BY "
        "p.t, q.t"
    ),
    "three factors": (
        "SELECT x.b, v.c, SUM(x.val * w.val * v.val) AS s FROM x JOIN w ON x.t = w.k "
        "JOIN v ON w.c = v.c GROUP BY x.b, v.c"
    ),
    "causal": (
        "SELECT p.b, p.t, SUM(p.val * q.val) AS s FROM x p JOIN x q ON p.b = q.b AND q.t <= p.t "
        "GROUP BY p.b, p.t"
    ),
    "masked product": (
        "SELECT x.b, SUM(x.val * y.val) AS s FROM x JOIN y ON x.b = y.b AND x.t = y.t "
        "WHERE x.val > 0 AND y.t > 0 GROUP BY x.b"
    ),
    "of a left join": (
        "SELECT x.b, SUM(s.val) AS s, COUNT(s.val) AS c, COUNT(*) AS r FROM x "
        "LEFT JOIN shifted s ON x.k = s.k GROUP BY x.b"
    ),
    "grouped by a left join's key": (
        "SELECT s.k, COUNT(*) AS c FROM x LEFT JOIN shifted s ON x.k = s.k GROUP BY s.k"
    ),
    "nested": "SELECT MAX(s) AS m FROM (SELECT b, SUM(val) AS s FROM x GROUP BY b) q",
    "nested grouped": (
        "SELECT b, SUM(s) AS t FROM (SELECT b, k, SUM(val) AS s FROM x GROUP BY b, k) q GROUP BY b"
    ),
    "text keys": "SELECT name, SUM(people) AS p FROM city GROUP BY name",
    "date keys": "SELECT time, AVG(temp) AS a FROM grid GROUP BY time",
    "empty": "SELECT SUM(val) AS s, COUNT(*) AS c, MIN(val) AS l, STDDEV(val) AS d FROM zero",
    "empty, grouped": "SELECT z, SUM(val) AS s FROM zero GROUP BY z",
    "empty reduced": "SELECT x.b, SUM(z.val) AS s FROM x CROSS JOIN zero z GROUP BY x.b",
    "one": "SELECT z, SUM(val) AS s, VAR_POP(val) AS v FROM one GROUP BY z",
    "no dims": "SELECT SUM(lr) AS s, COUNT(*) AS c FROM hyper",
    "small integers": "SELECT SUM(small) AS s, MAX(small) AS h, AVG(small) AS a FROM v",
}

UNIONS = {
    "union all": "SELECT b, val FROM x UNION ALL SELECT t, val FROM y",
    "of three": "SELECT b FROM x UNION ALL SELECT t FROM x UNION ALL SELECT c FROM v",
    "summed": "SELECT SUM(val) AS s FROM (SELECT val FROM x UNION ALL SELECT val FROM w) q",
    "grouped": (
        "SELECT b, SUM(val) AS s FROM (SELECT b, val FROM x UNION ALL SELECT t, val FROM y) q "
        "GROUP BY b"
    ),
    "grouped, domains differ": (
        "SELECT i, SUM(val) AS s, COUNT(*) AS c FROM (SELECT i, CAST(val AS DOUBLE) AS val FROM "
        "neg "
        "UNION ALL SELECT i, val FROM gap) q GROUP BY i"
    ),
    "grouped by text": (
        "SELECT name, SUM(v) AS s FROM (SELECT name, CAST(people AS DOUBLE) AS v FROM city "
        "UNION ALL SELECT name, len FROM river) q GROUP BY name"
    ),
    "every aggregate": (
        "SELECT COUNT(*) AS c, MIN(val) AS l, MAX(val) AS h, AVG(val) AS a, VAR_SAMP(val) AS v "
        "FROM (SELECT val FROM x WHERE val > 0 UNION ALL SELECT val FROM w) q"
    ),
    "with literals": (
        "SELECT 'x' AS which, SUM(val) AS s FROM x UNION ALL SELECT 'y', SUM(val) FROM y"
    ),
    "of nulls": "SELECT b, val FROM x UNION ALL SELECT NULL, val FROM y",
    "empty side": "SELECT b, val FROM x WHERE false UNION ALL SELECT b, val FROM y",
    "joined": (
        "SELECT q.b, SUM(q.val * y.val) AS s FROM (SELECT b, val FROM x UNION ALL SELECT c, val "
        "FROM v) q "
        "JOIN y ON q.b = y.b GROUP BY q.b"
    ),
    "grouped by dates": (
        "SELECT time, COUNT(*) AS c FROM (SELECT time FROM grid UNION ALL SELECT time FROM "
        "holidays) q GROUP BY time"
    ),
    "grouped by floats": (
        "SELECT lat, COUNT(*) AS c FROM (SELECT lat FROM grid UNION ALL SELECT lat FROM stations) "
        "q GROUP BY lat"
    ),
    "grouped, empty sides": (
        "SELECT z, COUNT(*) AS c FROM (SELECT z FROM zero UNION ALL SELECT z FROM zero) q GROUP BY "
        "z"
    ),
    "no keys, empty side": (
        "SELECT SUM(val) AS s, MIN(val) AS l FROM (SELECT val FROM zero UNION ALL SELECT val FROM "
        "one) q"
    ),
    "literals grouped": (
        "SELECT which, SUM(val) AS s FROM (SELECT 'x' AS which, val FROM x UNION ALL SELECT 'y', "
        "val FROM y) q "
        "GROUP BY which"
    ),
    "numbers grouped": (
        "SELECT which, SUM(val) AS s FROM (SELECT 3 AS which, val FROM x UNION ALL SELECT -1, val "
        "FROM y) q "
        "GROUP BY which"
    ),
    "filtered": (
        "SELECT * FROM (SELECT b, val FROM x UNION ALL SELECT t, val FROM y) q WHERE b = 1 AND val "
        "> 0"
    ),
}

COMMON_TABLES = {
    "one": "WITH q AS (SELECT b, SUM(val) AS s FROM x GROUP BY b) SELECT * FROM q",
    "read twice": (
        "WITH q AS (SELECT b, SUM(val) AS s FROM x GROUP BY b) "
        "SELECT l.b, r.b AS d, l.s * r.s AS p FROM q l CROSS JOIN q r"
    ),
    "chain": (
        "WITH p AS (SELECT b, t, val * 2 AS v FROM x), q AS (SELECT b, SUM(v) AS v FROM p GROUP BY "
        "b), "
        "r AS (SELECT p.b, p.t, p.v - q.v AS v FROM p JOIN q ON p.b = q.b) SELECT * FROM r WHERE v "
        "> 0"
    ),
    "nested": "WITH p AS (WITH q AS (SELECT * FROM x) SELECT b, val FROM q) SELECT * FROM p",
    "shadows a table": "WITH y AS (SELECT b, t, val + 1 AS val FROM x) SELECT * FROM y",
    "shadows the table it reads": "WITH x AS (SELECT b, t, val FROM x WHERE b = 1) SELECT * FROM x",
    "column list": "WITH q(i, j, v) AS (SELECT b, t, val FROM x) SELECT j, i, v FROM q",
    "column list of mixed case": 'WITH q("I", j) AS (SELECT b, val FROM x) SELECT "I", j FROM q',
    "quoted": 'WITH "Q" AS (SELECT b FROM x) SELECT * FROM "Q"',
    "case folds": "WITH Q AS (SELECT B, T FROM X) SELECT q.b FROM q",
    "in a subquery": "WITH q AS (SELECT 1 AS b) SELECT * FROM x WHERE b IN (SELECT b FROM q)",
}

NAMES = {
    "mixed case": 'SELECT "Dim", b, "Value" FROM "Mixed"',
    "mixed case alias": (
        'SELECT m."Dim" AS "D", SUM(m."Value") AS "S" FROM "Mixed" AS m GROUP BY m."Dim"'
    ),
    "spaces and quotes": 'SELECT "a dim", "a column" FROM "odd ""name"""',
    "spaces joined": (
        'SELECT o."a dim", m."Value" FROM "odd ""name""" o JOIN "Mixed" m ON o."a dim" = m."Dim"'
    ),
    "upper case": "SELECT X.B, X.VAL FROM X",
}

WINDOWS = {
    "whole": "SELECT b, t, val - AVG(val) OVER () AS d FROM x",
    "partition": "SELECT b, t, val / SUM(val) OVER (PARTITION BY b) AS d FROM x",
    "partition by column": "SELECT b, t, COUNT(*) OVER (PARTITION BY k) AS c FROM x",
    "partition by boolean": "SELECT b, t, MAX(n) OVER (PARTITION BY flag) AS c FROM x",
    "two partitions": (
        "SELECT b, t, SUM(val) OVER (PARTITION BY b) AS p, MIN(val) OVER (PARTITION BY t) AS q "
        "FROM x"
    ),
    "of filtered": "SELECT b, t, SUM(val) OVER (PARTITION BY b) AS p FROM x WHERE val > 0",
    "of nulls": "SELECT b, t, SUM(NULLIF(k, 2)) OVER (PARTITION BY k) AS p FROM x",
    "of a left join": (
        "SELECT x.b, x.t, SUM(s.val) OVER (PARTITION BY x.b) AS p FROM x LEFT JOIN shifted s ON "
        "x.k = s.k"
    ),
    "over two keys": "SELECT b, t, SUM(val) OVER (PARTITION BY b, k) AS p FROM x",
    "partition by dim equated": (
        "SELECT b, t, SUM(val) OVER (PARTITION BY t) AS p FROM x WHERE b = t"
    ),
    "over hidden rows": "SELECT x.b, SUM(x.val) OVER (PARTITION BY x.b) AS s FROM x",
    "softmax": (
        "SELECT b, t, exp(val - MAX(val) OVER (PARTITION BY b)) / "
        "SUM(exp(val)) OVER (PARTITION BY b) AS p FROM x"
    ),
}

SUBQUERIES = {
    "in": "SELECT * FROM x WHERE t IN (SELECT c FROM v)",
    "in, column": "SELECT b, t FROM x WHERE k IN (SELECT k FROM shifted)",
    "not in": "SELECT b, t FROM x WHERE k NOT IN (SELECT k FROM shifted)",
    "exists": "SELECT * FROM v WHERE EXISTS (SELECT 1 FROM x WHERE x.b = v.c AND x.val > 0)",
    "not exists": (
        "SELECT * FROM v WHERE NOT EXISTS (SELECT 1 FROM x WHERE x.b = v.c AND x.val > 1)"
    ),
    "scalar": "SELECT b, t, val - (SELECT AVG(val) FROM x) AS d FROM x",
    "scalar of nothing": "SELECT c, (SELECT SUM(val) FROM x WHERE false) AS d FROM v",
    "scalar in where": "SELECT b, t FROM x WHERE val > (SELECT AVG(val) FROM x)",
    "correlated scalar": "SELECT c, (SELECT SUM(x.val) FROM x WHERE x.b = v.c) AS s FROM v",
    "scalar of a row": "SELECT b, t, val - (SELECT val FROM y WHERE b = 1 AND t = 2) AS d FROM x",
    "scalar of no row": "SELECT b, (SELECT val FROM y WHERE b = 1 AND t = 9) AS d FROM x",
    "scalar of a one-row table": (
        "SELECT b, t, val * (SELECT lr FROM hyper) + (SELECT val FROM one) AS d FROM x"
    ),
    "scalar of an empty table": "SELECT b, (SELECT val FROM zero) AS d FROM x",
    "scalar dim": "SELECT b, t FROM x WHERE b = (SELECT MAX(c) FROM v)",
    "scalar in an aggregate": (
        "SELECT b, SUM(val - (SELECT AVG(val) FROM x)) AS d FROM x GROUP BY b"
    ),
    "scalar twice": (
        "SELECT val - (SELECT AVG(val) FROM x) AS d, (SELECT AVG(val) FROM x) * 2 AS e FROM x"
    ),
    "scalar in having": (
        "SELECT b, SUM(val) AS s FROM x GROUP BY b HAVING SUM(val) > (SELECT AVG(val) FROM x)"
    ),
    "exists or": (
        "SELECT c FROM v WHERE EXISTS (SELECT 1 FROM x WHERE x.b = v.c AND x.val > 1) OR c = 1"
    ),
    "in or": "SELECT b, t FROM x WHERE k IN (SELECT k FROM shifted) OR flag",
    "not in or": "SELECT b, t FROM x WHERE k NOT IN (SELECT k FROM shifted) OR flag",
    "exists uncorrelated": "SELECT c FROM v WHERE EXISTS (SELECT 1 FROM x WHERE val > 99)",
    "in with nulls": "SELECT c FROM v WHERE c IN (SELECT NULLIF(k, 1) FROM x)",
    "not exists with nulls": (
        "SELECT c FROM v WHERE NOT EXISTS (SELECT 1 FROM (SELECT NULLIF(k, 1) AS q FROM x) r WHERE "
        "q = c)"
    ),
    "derived": "SELECT * FROM (SELECT b, MAX(val) AS m FROM x GROUP BY b) AS q(i, j)",
    "intersect": "SELECT i FROM neg INTERSECT SELECT i FROM gap",
    "except": "SELECT i FROM neg EXCEPT SELECT i FROM gap",
}


def _cases(table):
    return pytest.mark.parametrize("sql", table.values(), ids=table.keys())


@_cases(PROJECTIONS)
def test_projection(engines, sql):
    engines.agree(sql)


@_cases(FILTERS)
def test_filter(engines, sql):
    engines.agree(sql)


@_cases(JOINS)
def test_join(engines, sql):
    engines.agree(sql)


@_cases(AGGREGATES)
def test_aggregate(engines, sql):
    engines.agree(sql)


@_cases(UNIONS)
def test_union(engines, sql):
    engines.agree(sql)


@_cases(COMMON_TABLES)
def test_common_table(engines, sql):
    engines.agree(sql)


@_cases(NAMES)
def test_names(engines, sql):
    engines.agree(sql)


@_cases(WINDOWS)
def test_window(engines, sql):
    engines.agree(sql)


@_cases(SUBQUERIES)
def test_subquery(engines, sql):
    engines.agree(sql)
