-- NULL, outer joins, groups, order
SELECT i,j FROM t WHERE k NOT IN (1, NULL)
SELECT i,j FROM t WHERE NOT (k IN (1, NULL))
SELECT i,j, k IN (1,NULL) AS a, k NOT IN (0,NULL) AS b, n IN (NULL) AS c FROM t
SELECT k FROM s WHERE k NOT IN (SELECT k FROM t WHERE k IS NOT NULL)
SELECT k FROM s WHERE k NOT IN (SELECT i FROM e)
SELECT x FROM nul WHERE x IN (SELECT k FROM s)
SELECT i,j FROM t WHERE k IN (SELECT y FROM nul)
SELECT k FROM s WHERE EXISTS (SELECT 1 FROM t WHERE t.k = s.k AND t.n > s.m)
SELECT k FROM s WHERE NOT EXISTS (SELECT 1 FROM t WHERE t.k = s.k AND t.n > s.m)
SELECT k FROM s WHERE EXISTS (SELECT 1 FROM t WHERE t.k = s.k GROUP BY t.k HAVING COUNT(*) > 1)
SELECT k, (SELECT COUNT(*) FROM t WHERE t.k = s.k) AS c FROM s
SELECT k, (SELECT MAX(n) FROM t WHERE t.k = s.k AND t.i > 0) AS c FROM s
SELECT k FROM s WHERE m > (SELECT AVG(tame) FROM t WHERE t.k = s.k)
SELECT k FROM s WHERE m > ALL (SELECT i FROM t)
SELECT k FROM s WHERE k = ANY (SELECT i FROM t)
SELECT i,j,b AND NULL AS a, b OR NULL AS o, NOT b AS n, b = NULL AS e, b IS NULL AS z, b IS UNKNOWN AS u FROM t
SELECT i,j FROM t WHERE b
SELECT i,j FROM t WHERE NOT b
SELECT i,j FROM t WHERE b IS NOT TRUE
SELECT i,j FROM t WHERE b OR n > 0
SELECT i,j FROM t WHERE NOT (b AND n > 0)
SELECT i,j FROM t WHERE (b AND n > 0) IS NULL
SELECT i,j, b = (n > 0) AS r, b <> (n>0) AS q, b IS DISTINCT FROM (n>0) AS d FROM t
SELECT i,j FROM t WHERE k BETWEEN NULL AND 2
SELECT i,j FROM t WHERE k NOT BETWEEN 1 AND NULL
SELECT i,j, n BETWEEN k AND 5 AS r FROM t
SELECT i,j, COALESCE(n, k, -1) AS r, NULLIF(k, n) AS q, NULLIF(n,1) AS z FROM t
SELECT i,j, COALESCE(NULL, n) AS r FROM t
SELECT i,j, GREATEST(n, k) AS g, LEAST(n, NULL) AS l, GREATEST(tame, k) AS h FROM t
SELECT t.i,t.j,s.k,s.q FROM t LEFT JOIN s ON t.k=s.k AND s.q>1
SELECT t.i,t.j,s.k,s.q FROM t LEFT JOIN s ON t.k=s.k WHERE s.q>1
SELECT t.i,t.j,s.k,s.q FROM t LEFT JOIN s ON t.k=s.k AND t.n>0
SELECT t.i,t.j,s.k,s.q FROM t LEFT JOIN s ON t.k=s.k WHERE t.n>0 OR s.q IS NULL
SELECT t.i,t.j,s.k,s.q FROM t RIGHT JOIN s ON t.k=s.k AND t.n>0
SELECT t.i,t.j,s.k,s.q FROM t FULL JOIN s ON t.k=s.k AND t.n>0
SELECT t.i,t.j,s.k,s.q FROM t FULL JOIN s ON t.k=s.k AND s.q>2
SELECT t.i,t.j,s.k,s.q FROM t FULL JOIN s ON t.k=s.k WHERE s.q IS NULL OR t.i IS NULL
SELECT t.i,s.k FROM t LEFT JOIN s ON false
SELECT t.i,s.k FROM t LEFT JOIN s ON true WHERE t.j=0
SELECT t.i,s.k FROM t FULL JOIN s ON false
SELECT a.k, b.k AS k2 FROM s a LEFT JOIN s b ON a.k = b.k + 1
SELECT a.k, b.k AS k2 FROM s a LEFT JOIN s b ON a.m = b.k
SELECT a.k, b.k AS k2 FROM s a LEFT JOIN s b ON a.k < b.k
SELECT a.k, b.k AS k2 FROM s a FULL JOIN s b ON a.k < b.m
SELECT a.x, b.x AS x2 FROM nul a JOIN nul b ON a.x = b.x
SELECT a.x, b.x AS x2 FROM nul a JOIN nul b ON a.x IS NOT DISTINCT FROM b.x
SELECT a.x, b.x AS x2 FROM nul a LEFT JOIN nul b ON a.x = b.x
SELECT a.x, b.x AS x2 FROM nul a FULL JOIN nul b ON a.x = b.y
SELECT a.y, b.y AS y2 FROM nul a FULL JOIN nul b ON a.y = b.y
SELECT a.y, COUNT(b.x) AS c, COUNT(*) AS r FROM nul a LEFT JOIN nul b ON a.y = b.y GROUP BY a.y
SELECT s.k, SUM(t.n) AS r, COUNT(t.n) AS c, COUNT(*) AS d, AVG(t.tame) AS a, MIN(t.tame) AS mi FROM s LEFT JOIN t ON t.k=s.k GROUP BY s.k
SELECT s.k, SUM(t.tame) AS r FROM t RIGHT JOIN s ON t.k=s.k AND t.i=1 GROUP BY s.k
SELECT t.k, SUM(s.q) AS r FROM t FULL JOIN s ON t.k=s.k GROUP BY t.k
SELECT COUNT(*) AS c, COUNT(s.k) AS a, COUNT(t.k) AS b FROM t FULL JOIN s ON t.k=s.k
SELECT * FROM s LEFT JOIN e ON s.k=e.i
SELECT * FROM e LEFT JOIN s ON s.k=e.i
SELECT * FROM e FULL JOIN s ON s.k=e.i
SELECT s.k FROM s WHERE k IN (SELECT i FROM e)
SELECT s.k FROM s LEFT SEMI JOIN t ON s.k=t.k AND t.n>1
SELECT s.k FROM s LEFT ANTI JOIN t ON s.k=t.k AND t.n>1
SELECT t.i,t.j FROM t LEFT ANTI JOIN s ON s.k=t.k
SELECT t.i,t.j FROM t LEFT SEMI JOIN s ON s.k=t.k AND s.q > t.tame
SELECT a.i, b.j FROM t a JOIN t b ON a.v = b.v
SELECT a.i, a.j, b.i AS p, b.j AS q FROM t a JOIN t b ON a.n = b.n
SELECT a.i, a.j, s.k FROM t a JOIN s ON a.i8 = s.k
SELECT a.i, a.j, s.k FROM t a JOIN s ON a.u8 = s.k
SELECT a.i, a.j, s.k FROM t a JOIN s ON a.tame = s.k
SELECT a.i, a.j, s.k FROM t a JOIN s ON a.i32 = s.k
SELECT a.z, b.z AS z2 FROM fl a JOIN fl b ON a.z=b.z
SELECT a.z, b.i FROM fl a JOIN t b ON a.z=b.i
SELECT a.z, t.i, t.j FROM ui a JOIN t ON a.z=t.u
SELECT a.z, t.i, t.j FROM bo a JOIN t ON a.z=t.b
SELECT a.z, t.i, t.j FROM bo a LEFT JOIN t ON a.z=t.b AND t.n>0
SELECT SUM(n) AS s FROM t HAVING COUNT(*) > 100
SELECT SUM(tame) AS s FROM t HAVING COUNT(*) > 1
SELECT 1 AS one FROM t HAVING COUNT(*) > 1
SELECT COUNT(*) AS c FROM e HAVING COUNT(*) = 0
SELECT MAX(val) AS m FROM e HAVING MAX(val) IS NULL
SELECT k, SUM(n) AS s FROM t GROUP BY k HAVING SUM(n) IS NULL OR k IS NULL
SELECT k, COUNT(*) AS c FROM t GROUP BY k HAVING k IS NULL
SELECT b, k, COUNT(*) AS c, SUM(tame) AS s FROM t GROUP BY b, k
SELECT i FROM t GROUP BY i HAVING MIN(v) IS NULL
SELECT z, COUNT(*) AS c FROM fl GROUP BY z
SELECT DISTINCT z FROM fl
SELECT z = 0.0 AS r, COUNT(*) AS c FROM fl GROUP BY 1
SELECT ABS(z) AS r, COUNT(*) AS c FROM fl GROUP BY 1
SELECT -z AS r, COUNT(*) AS c FROM fl GROUP BY 1
SELECT z+0 AS r, COUNT(*) AS c FROM fl GROUP BY 1
SELECT MIN(z) AS a, MAX(z) AS b FROM fl
SELECT MIN(v) AS a, MAX(v) AS b FROM t
SELECT MIN(v) AS a, MAX(v) AS b FROM t WHERE i=0
SELECT v FROM t ORDER BY v
SELECT v FROM t ORDER BY v DESC
SELECT v FROM t ORDER BY v NULLS FIRST
SELECT v FROM t ORDER BY v DESC NULLS LAST
SELECT z, x FROM fl ORDER BY z DESC
SELECT n FROM t ORDER BY n, i, j LIMIT 4 OFFSET 2
SELECT n FROM t ORDER BY n LIMIT 0
SELECT n FROM t ORDER BY n OFFSET 100
SELECT k, n FROM t ORDER BY k DESC, n ASC NULLS FIRST
SELECT k, SUM(tame) AS s FROM t GROUP BY k ORDER BY s DESC LIMIT 2
SELECT i, j FROM t ORDER BY tame * -1, i, j
SELECT i, j FROM t ORDER BY b, i DESC, j
SELECT i,j,n FROM t ORDER BY 3 DESC NULLS LAST, 1, 2
SELECT COUNT(*) AS c FROM (SELECT i FROM t ORDER BY j) q
SELECT name FROM c ORDER BY name
SELECT name FROM c ORDER BY upper(name) DESC
SELECT time FROM d ORDER BY time DESC LIMIT 2
-- integers, CASE, UNION, aggregates
SELECT i,j, n+1 AS a, n*2 AS b, n-1 AS c, -n AS d FROM t
SELECT i,j, i8+1 AS a, i8*2 AS b, -i8 AS c, i8+i8 AS d, i8*i8 AS e FROM t
SELECT i,j, u8+1 AS a, u8-1 AS b, u8+u8 AS d, u8-i8 AS e FROM t
SELECT i,j, i32+i32 AS a, i32*i32 AS b, i32+1 AS c, i32 - i8 AS d FROM t
SELECT i,j, u8 > i8 AS a, u8 = i8 AS b, i8 < u8 AS c, i32 > u8 AS d FROM t
SELECT SUM(i8) AS a, SUM(u8) AS b, SUM(i32) AS c, AVG(i8) AS d, MIN(i8) AS e, MAX(u8) AS f FROM t
SELECT SUM(u) AS a FROM t
SELECT MIN(u) AS b, MAX(u) AS c FROM t
SELECT AVG(u) AS b FROM t
SELECT i, MIN(u) AS b, MAX(u) AS c, SUM(u) AS s FROM t GROUP BY i
SELECT SUM(n) AS s, AVG(n) AS a FROM t
SELECT SUM(n) AS s FROM t WHERE i=2
SELECT n/2 AS a, n%2 AS b, n/-3 AS c, n%-3 AS d, -7/2 AS e, -7%3 AS f FROM t
SELECT 7/2 AS a, 7.0/2 AS b, 7%2.5 AS c, 1/3 AS d, -1/3 AS e
SELECT tame/0 AS a, tame % 2 AS b, tame % 0 AS c, -tame % 2 AS d, tame/k AS e FROM t
SELECT i/2 AS a, j%2 AS b, i%2=0 AS c, (i-1)/2 AS d, (i-1)%2 AS e FROM t
SELECT u8/2 AS a, u8%3 AS b, i8/3 AS c, i8%5 AS d FROM t
SELECT round(2.5) AS a, round(-2.5) AS b, round(0.5) AS c, round(1.25,1) AS d
SELECT round(tame,1) AS a FROM t
SELECT power(2, 10) AS a, power(tame, 2) AS b, power(n, 2) AS c FROM t
SELECT power(tame, 0.5) AS b, sqrt(tame) AS c, ln(tame) AS d, exp(tame) AS e, log10(tame) AS f, log2(tame) AS g FROM t
SELECT sqrt(n) AS a, exp(k) AS b, ln(i) AS c FROM t
SELECT f+1 AS a, f*f AS b, f+tame AS c, f/3 AS d, -f AS e, f > 0.1 AS g FROM t
SELECT SUM(f) AS a, AVG(f) AS b, MIN(f) AS c, MAX(f) AS d, STDDEV(f) AS e FROM t
SELECT f = 0.1 AS a, f = CAST(0.1 AS FLOAT) AS b FROM t
SELECT i, f IN (0.1, 1) AS a FROM t
SELECT CAST(n AS DOUBLE) AS a, CAST(k AS FLOAT) AS b, CAST(b AS INT) AS c, CAST(b AS DOUBLE) AS d, CAST(i8 AS BIGINT) AS e, CAST(u8 AS INT) AS g FROM t
SELECT CAST(k AS SMALLINT) AS a, CAST(i AS SMALLINT) AS b, CAST(i AS VARCHAR) AS c FROM t
SELECT n & 1 AS a FROM t
SELECT CASE WHEN n > 0 THEN 1 ELSE 2.5 END AS r FROM t
SELECT CASE WHEN n > 0 THEN i8 ELSE n END AS r FROM t
SELECT CASE WHEN n > 0 THEN u8 ELSE i8 END AS r FROM t
SELECT CASE WHEN n > 0 THEN NULL ELSE n END AS r, CASE WHEN n > 0 THEN NULL END AS q FROM t
SELECT CASE WHEN n > 0 THEN f ELSE tame END AS r FROM t
SELECT CASE WHEN n > 0 THEN f ELSE n END AS r FROM t
SELECT CASE n WHEN 1 THEN 'a' ELSE 'b' END AS r FROM t
SELECT CASE k WHEN 1 THEN 'a' WHEN 2 THEN 'b' END AS r FROM t
SELECT CASE k WHEN 1 THEN 'a' WHEN 2 THEN 'b' END AS r, COUNT(*) AS c FROM t GROUP BY 1
SELECT CASE WHEN k = 1 THEN TRUE ELSE n > 0 END AS r FROM t
SELECT CASE WHEN k IS NULL THEN -1 ELSE k END AS r, SUM(tame) AS s FROM t GROUP BY 1
SELECT COALESCE(k, 9) AS r, SUM(tame) AS s FROM t GROUP BY 1
SELECT SUM(CASE WHEN n > 0 THEN 1 END) AS a, COUNT(CASE WHEN n > 0 THEN 1 END) AS b, SUM(CASE WHEN n > 0 THEN 1 ELSE 0 END) AS c FROM t
SELECT CASE WHEN v = v THEN v ELSE 0 END AS r FROM t
SELECT CASE WHEN i = 0 THEN 1 / i ELSE 5 END AS r FROM t WHERE i > 0
SELECT CASE WHEN tame <> 0 THEN 1 / tame END AS r FROM t
SELECT n AS a FROM t UNION ALL SELECT tame FROM t
SELECT i8 AS a FROM t UNION ALL SELECT u8 FROM t
SELECT i8 AS a FROM t UNION ALL SELECT n FROM t
SELECT f AS a FROM t UNION ALL SELECT n FROM t
SELECT k AS a FROM t UNION SELECT y FROM nul
SELECT k AS a FROM t UNION SELECT k FROM s
SELECT b AS a FROM t UNION ALL SELECT NULL
SELECT NULL AS a UNION ALL SELECT n FROM t
SELECT k FROM t INTERSECT SELECT k FROM s
SELECT k FROM t EXCEPT SELECT k FROM s
SELECT k FROM s EXCEPT SELECT k FROM t
SELECT k FROM t INTERSECT ALL SELECT k FROM s
SELECT k FROM t EXCEPT ALL SELECT k FROM s
SELECT y FROM nul INTERSECT SELECT k FROM t
SELECT k, COUNT(*) AS c FROM (SELECT k FROM t UNION ALL SELECT k FROM s) q GROUP BY k
SELECT SUM(a) AS c, AVG(a) AS m, STDDEV(a) AS d FROM (SELECT n AS a FROM t WHERE n > 0 AND n < 99 UNION ALL SELECT m FROM s) q
SELECT COUNT(DISTINCT a) AS c FROM (SELECT k AS a FROM t UNION ALL SELECT k FROM s) q
SELECT STDDEV(x) AS s, VAR(x) AS v, STDDEV_POP(x) AS p, VAR_POP(x) AS q FROM one
SELECT i, STDDEV(tame) AS s FROM t WHERE j = 0 GROUP BY i
SELECT STDDEV(val) AS s, VAR_POP(val) AS p FROM e
SELECT STDDEV(v) AS s FROM t WHERE i = 0
SELECT VAR_POP(x) AS s FROM nul WHERE x = 1
SELECT STDDEV(x) AS s FROM nul WHERE x IS NULL
SELECT k, VAR_SAMP(n) AS s FROM t WHERE n < 100 AND n > -100 GROUP BY k
SELECT COUNT(DISTINCT k) AS a, COUNT(k) AS b, COUNT(*) AS c, SUM(DISTINCT k) AS d FROM t
SELECT i, COUNT(DISTINCT k) AS a FROM t GROUP BY i
SELECT i, COUNT(DISTINCT k) FILTER (WHERE n > 0) AS a FROM t GROUP BY i
SELECT COUNT(DISTINCT b) AS a, COUNT(DISTINCT i) AS c FROM t
SELECT SUM(tame) FILTER (WHERE b) AS a, COUNT(*) FILTER (WHERE NOT b) AS c, AVG(n) FILTER (WHERE n IS NULL) AS d, MIN(tame) FILTER (WHERE k = 1) AS e FROM t
SELECT k, SUM(tame) FILTER (WHERE b) AS a, COUNT(*) FILTER (WHERE b IS NULL) AS c FROM t GROUP BY k
SELECT MIN(b) AS a, MAX(b) AS c FROM t
SELECT i, bool_and(b) AS a, bool_or(b) AS c FROM t GROUP BY i
SELECT MIN(name) AS a, MAX(name) AS b FROM c
SELECT MIN(time) AS a, MAX(time) AS b, COUNT(time) AS c FROM d
SELECT MIN(w) AS a, MAX(w) AS b FROM d WHERE x > 2
SELECT SUM(1) AS a, SUM(2.5) AS b, COUNT(1) AS c, AVG(3) AS d FROM t
SELECT SUM(1) AS a, COUNT(1) AS c FROM e
SELECT k, SUM(1) AS a FROM t WHERE n > 0 GROUP BY k
SELECT SUM(i) AS a, AVG(j) AS b, MIN(i) AS c FROM t WHERE k = 1
SELECT SUM(i*n) AS a FROM t WHERE n < 100
SELECT SUM(tame)/COUNT(*) AS a, 1.0*COUNT(*)/3 AS b, COUNT(*)/2 AS c FROM t
SELECT MEAN(tame) AS a FROM t
-- every integer type, dates, text, windows, names, empty and one-row tables
SELECT val+val AS a, val*val AS b, val-val AS c FROM u8t
SELECT i, val FROM u8t WHERE val > 1
SELECT val = 1 AS a, val <> 2 AS b, val <= 100 AS c FROM u8t
SELECT a.i, b.i AS j FROM u8t a JOIN u8t b ON a.val > b.val
SELECT a.i, b.i AS j FROM u8t a JOIN u8t b ON a.val = b.val
SELECT SUM(val) AS s, MIN(val) AS a, MAX(val) AS b, AVG(val) AS c, COUNT(val) AS d, STDDEV(val) AS e FROM u8t
SELECT SUM(val) AS s FROM u8t WHERE i > 1
SELECT val FROM u8t ORDER BY val DESC
SELECT val IN (1, 2) AS a, NULLIF(val, 1) AS b, COALESCE(NULLIF(val,1), 5) AS c FROM u8t
SELECT CASE WHEN val > 1 THEN val ELSE 0 END AS a FROM u8t
SELECT CAST(val AS DOUBLE) AS a, CAST(val AS FLOAT) AS b FROM u8t
SELECT val / 3 AS a, val % 3 AS b FROM u8t
SELECT val * 1.5 AS a, val + 0.5 AS b, sqrt(val) AS c FROM u8t
SELECT GREATEST(val, val) AS g FROM u8t
SELECT val BETWEEN 1 AND 100 AS a FROM u8t
SELECT SUM(val) OVER () AS a, MAX(val) OVER () AS b FROM u8t
SELECT SUM(a) AS s FROM (SELECT val AS a FROM u8t UNION ALL SELECT val FROM u8t) q
SELECT SUM(val*val) AS s FROM u8t
SELECT SUM(a.val*b.val) AS s FROM u8t a JOIN u8t b ON a.i=b.i
SELECT -CAST(val AS BIGINT) AS x FROM u8t WHERE i > 1
SELECT val+val AS a, val*val AS b, val-val AS c FROM u16t
SELECT i, val FROM u16t WHERE val > 1
SELECT val = 1 AS a, val <> 2 AS b, val <= 100 AS c FROM u16t
SELECT a.i, b.i AS j FROM u16t a JOIN u16t b ON a.val > b.val
SELECT a.i, b.i AS j FROM u16t a JOIN u16t b ON a.val = b.val
SELECT SUM(val) AS s, MIN(val) AS a, MAX(val) AS b, AVG(val) AS c, COUNT(val) AS d, STDDEV(val) AS e FROM u16t
SELECT SUM(val) AS s FROM u16t WHERE i > 1
SELECT val FROM u16t ORDER BY val DESC
SELECT val IN (1, 2) AS a, NULLIF(val, 1) AS b, COALESCE(NULLIF(val,1), 5) AS c FROM u16t
SELECT CASE WHEN val > 1 THEN val ELSE 0 END AS a FROM u16t
SELECT CAST(val AS DOUBLE) AS a, CAST(val AS FLOAT) AS b FROM u16t
SELECT val / 3 AS a, val % 3 AS b FROM u16t
SELECT val * 1.5 AS a, val + 0.5 AS b, sqrt(val) AS c FROM u16t
SELECT GREATEST(val, val) AS g FROM u16t
SELECT val BETWEEN 1 AND 100 AS a FROM u16t
SELECT SUM(val) OVER () AS a, MAX(val) OVER () AS b FROM u16t
SELECT SUM(a) AS s FROM (SELECT val AS a FROM u16t UNION ALL SELECT val FROM u16t) q
SELECT SUM(val*val) AS s FROM u16t
SELECT SUM(a.val*b.val) AS s FROM u16t a JOIN u16t b ON a.i=b.i
SELECT -CAST(val AS BIGINT) AS x FROM u16t WHERE i > 1
SELECT val+val AS a, val*val AS b, val-val AS c FROM u32t
SELECT i, val FROM u32t WHERE val > 1
SELECT val = 1 AS a, val <> 2 AS b, val <= 100 AS c FROM u32t
SELECT a.i, b.i AS j FROM u32t a JOIN u32t b ON a.val > b.val
SELECT a.i, b.i AS j FROM u32t a JOIN u32t b ON a.val = b.val
SELECT SUM(val) AS s, MIN(val) AS a, MAX(val) AS b, AVG(val) AS c, COUNT(val) AS d, STDDEV(val) AS e FROM u32t
SELECT SUM(val) AS s FROM u32t WHERE i > 1
SELECT val FROM u32t ORDER BY val DESC
SELECT val IN (1, 2) AS a, NULLIF(val, 1) AS b, COALESCE(NULLIF(val,1), 5) AS c FROM u32t
SELECT CASE WHEN val > 1 THEN val ELSE 0 END AS a FROM u32t
SELECT CAST(val AS DOUBLE) AS a, CAST(val AS FLOAT) AS b FROM u32t
SELECT val / 3 AS a, val % 3 AS b FROM u32t
SELECT val * 1.5 AS a, val + 0.5 AS b, sqrt(val) AS c FROM u32t
SELECT GREATEST(val, val) AS g FROM u32t
SELECT val BETWEEN 1 AND 100 AS a FROM u32t
SELECT SUM(val) OVER () AS a, MAX(val) OVER () AS b FROM u32t
SELECT SUM(a) AS s FROM (SELECT val AS a FROM u32t UNION ALL SELECT val FROM u32t) q
SELECT SUM(val*val) AS s FROM u32t
SELECT SUM(a.val*b.val) AS s FROM u32t a JOIN u32t b ON a.i=b.i
SELECT -CAST(val AS BIGINT) AS x FROM u32t WHERE i > 1
SELECT val+val AS a, val*val AS b, val-val AS c FROM u64t
SELECT i, val FROM u64t WHERE val > 1
SELECT val = 1 AS a, val <> 2 AS b, val <= 100 AS c FROM u64t
SELECT a.i, b.i AS j FROM u64t a JOIN u64t b ON a.val > b.val
SELECT a.i, b.i AS j FROM u64t a JOIN u64t b ON a.val = b.val
SELECT SUM(val) AS s, MIN(val) AS a, MAX(val) AS b, AVG(val) AS c, COUNT(val) AS d, STDDEV(val) AS e FROM u64t
SELECT SUM(val) AS s FROM u64t WHERE i > 1
SELECT val FROM u64t ORDER BY val DESC
SELECT CAST(val AS DOUBLE) AS a, CAST(val AS FLOAT) AS b FROM u64t
SELECT val * 1.5 AS a, val + 0.5 AS b, sqrt(val) AS c FROM u64t
SELECT val BETWEEN 1 AND 100 AS a FROM u64t
SELECT SUM(val) OVER () AS a, MAX(val) OVER () AS b FROM u64t
SELECT SUM(a) AS s FROM (SELECT val AS a FROM u64t UNION ALL SELECT val FROM u64t) q
SELECT SUM(val*val) AS s FROM u64t
SELECT SUM(a.val*b.val) AS s FROM u64t a JOIN u64t b ON a.i=b.i
SELECT val+val AS a, val*val AS b, val-val AS c FROM i8t
SELECT i, val FROM i8t WHERE val > 1
SELECT val = 1 AS a, val <> 2 AS b, val <= 100 AS c FROM i8t
SELECT a.i, b.i AS j FROM i8t a JOIN i8t b ON a.val > b.val
SELECT a.i, b.i AS j FROM i8t a JOIN i8t b ON a.val = b.val
SELECT SUM(val) AS s, MIN(val) AS a, MAX(val) AS b, AVG(val) AS c, COUNT(val) AS d, STDDEV(val) AS e FROM i8t
SELECT SUM(val) AS s FROM i8t WHERE i > 1
SELECT val FROM i8t ORDER BY val DESC
SELECT val IN (1, 2) AS a, NULLIF(val, 1) AS b, COALESCE(NULLIF(val,1), 5) AS c FROM i8t
SELECT CASE WHEN val > 1 THEN val ELSE 0 END AS a FROM i8t
SELECT CAST(val AS DOUBLE) AS a, CAST(val AS FLOAT) AS b FROM i8t
SELECT val / 3 AS a, val % 3 AS b FROM i8t
SELECT val * 1.5 AS a, val + 0.5 AS b, sqrt(val) AS c FROM i8t
SELECT GREATEST(val, val) AS g FROM i8t
SELECT val BETWEEN 1 AND 100 AS a FROM i8t
SELECT SUM(val) OVER () AS a, MAX(val) OVER () AS b FROM i8t
SELECT SUM(a) AS s FROM (SELECT val AS a FROM i8t UNION ALL SELECT val FROM i8t) q
SELECT SUM(val*val) AS s FROM i8t
SELECT SUM(a.val*b.val) AS s FROM i8t a JOIN i8t b ON a.i=b.i
SELECT -val AS x FROM i8t
SELECT -CAST(val AS BIGINT) AS x FROM i8t WHERE i > 1
SELECT val+val AS a, val*val AS b, val-val AS c FROM i16t
SELECT i, val FROM i16t WHERE val > 1
SELECT val = 1 AS a, val <> 2 AS b, val <= 100 AS c FROM i16t
SELECT a.i, b.i AS j FROM i16t a JOIN i16t b ON a.val > b.val
SELECT a.i, b.i AS j FROM i16t a JOIN i16t b ON a.val = b.val
SELECT SUM(val) AS s, MIN(val) AS a, MAX(val) AS b, AVG(val) AS c, COUNT(val) AS d, STDDEV(val) AS e FROM i16t
SELECT SUM(val) AS s FROM i16t WHERE i > 1
SELECT val FROM i16t ORDER BY val DESC
SELECT val IN (1, 2) AS a, NULLIF(val, 1) AS b, COALESCE(NULLIF(val,1), 5) AS c FROM i16t
SELECT CASE WHEN val > 1 THEN val ELSE 0 END AS a FROM i16t
SELECT CAST(val AS DOUBLE) AS a, CAST(val AS FLOAT) AS b FROM i16t
SELECT val / 3 AS a, val % 3 AS b FROM i16t
SELECT val * 1.5 AS a, val + 0.5 AS b, sqrt(val) AS c FROM i16t
SELECT GREATEST(val, val) AS g FROM i16t
SELECT val BETWEEN 1 AND 100 AS a FROM i16t
SELECT SUM(val) OVER () AS a, MAX(val) OVER () AS b FROM i16t
SELECT SUM(a) AS s FROM (SELECT val AS a FROM i16t UNION ALL SELECT val FROM i16t) q
SELECT SUM(val*val) AS s FROM i16t
SELECT SUM(a.val*b.val) AS s FROM i16t a JOIN i16t b ON a.i=b.i
SELECT -val AS x FROM i16t
SELECT -CAST(val AS BIGINT) AS x FROM i16t WHERE i > 1
SELECT val+val AS a, val*val AS b, val-val AS c FROM i32t
SELECT i, val FROM i32t WHERE val > 1
SELECT val = 1 AS a, val <> 2 AS b, val <= 100 AS c FROM i32t
SELECT a.i, b.i AS j FROM i32t a JOIN i32t b ON a.val > b.val
SELECT a.i, b.i AS j FROM i32t a JOIN i32t b ON a.val = b.val
SELECT SUM(val) AS s, MIN(val) AS a, MAX(val) AS b, AVG(val) AS c, COUNT(val) AS d, STDDEV(val) AS e FROM i32t
SELECT SUM(val) AS s FROM i32t WHERE i > 1
SELECT val FROM i32t ORDER BY val DESC
SELECT val IN (1, 2) AS a, NULLIF(val, 1) AS b, COALESCE(NULLIF(val,1), 5) AS c FROM i32t
SELECT CASE WHEN val > 1 THEN val ELSE 0 END AS a FROM i32t
SELECT CAST(val AS DOUBLE) AS a, CAST(val AS FLOAT) AS b FROM i32t
SELECT val / 3 AS a, val % 3 AS b FROM i32t
SELECT val * 1.5 AS a, val + 0.5 AS b, sqrt(val) AS c FROM i32t
SELECT GREATEST(val, val) AS g FROM i32t
SELECT val BETWEEN 1 AND 100 AS a FROM i32t
SELECT SUM(val) OVER () AS a, MAX(val) OVER () AS b FROM i32t
SELECT SUM(a) AS s FROM (SELECT val AS a FROM i32t UNION ALL SELECT val FROM i32t) q
SELECT SUM(val*val) AS s FROM i32t
SELECT SUM(a.val*b.val) AS s FROM i32t a JOIN i32t b ON a.i=b.i
SELECT -val AS x FROM i32t
SELECT -CAST(val AS BIGINT) AS x FROM i32t WHERE i > 1
SELECT date_part('month', time) AS m, date_part('year', time) AS y, date_part('dow', time) AS d, date_part('doy', time) AS z, date_part('epoch', time) AS e, date_part('quarter', time) AS q, date_part('week', time) AS w, x FROM d
SELECT date_trunc('month', time) AS m, SUM(x) AS s FROM d GROUP BY 1
SELECT date_trunc('day', time) AS m, COUNT(*) AS s FROM d GROUP BY 1
SELECT date_trunc('quarter', time) AS m, COUNT(*) AS s FROM d GROUP BY 1
SELECT date_trunc('week', time) AS m FROM d
SELECT time + INTERVAL '1 month' AS a, time - INTERVAL '1 day' AS b, time + INTERVAL '1 year' AS c FROM d
SELECT time - TIMESTAMP '2024-01-01' AS a FROM d
SELECT x FROM d WHERE time >= '2024-01-01' AND time < '2024-03-01'
SELECT x FROM d WHERE time BETWEEN DATE '2024-01-01' AND DATE '2024-02-29'
SELECT x FROM d WHERE time = TIMESTAMP '2024-02-29 12:00:00'
SELECT x FROM d WHERE time > TIMESTAMP '2024-01-01T00:00:00+01:00'
SELECT x FROM d WHERE CAST(time AS DATE) = DATE '2024-03-01'
SELECT CAST(time AS DATE) AS a, COUNT(*) AS c FROM d GROUP BY 1
SELECT x FROM d WHERE time > w
SELECT x, w FROM d WHERE w IS NOT NULL ORDER BY w
SELECT MIN(time) AS a, MAX(time) AS b, COUNT(time) AS c FROM d
SELECT date_part('month', time) AS m, MIN(time) AS a, MAX(w) AS b FROM d GROUP BY 1
SELECT MIN(w) AS a, MAX(w) AS b FROM d WHERE x > 2
SELECT MIN(w) AS a, MAX(w) AS b FROM d WHERE x > 200
SELECT MIN(w) OVER () AS a, x FROM d
SELECT a.x, b.x AS y FROM d a JOIN d b ON a.time = b.w
SELECT a.x, b.x AS y FROM d a JOIN d b ON a.time < b.time
SELECT a.x, b.x AS y FROM d a LEFT JOIN d b ON a.time = b.time + INTERVAL '1 day'
SELECT to_char(time, '%Y-%m') AS a, COUNT(*) AS c FROM d GROUP BY 1
SELECT extract(hour FROM time) AS a, extract(minute FROM time) AS b, extract(second FROM time) AS c FROM d
SELECT date_part('hour', time AT TIME ZONE 'UTC') AS a FROM d
SELECT date_bin(INTERVAL '1 hour', time) AS a FROM d
SELECT x FROM d WHERE time IN (TIMESTAMP '2024-12-31', TIMESTAMP '2024-03-01')
SELECT CASE WHEN x > 2 THEN time ELSE w END AS a FROM d
SELECT COALESCE(NULLIF(time, w), TIMESTAMP '2000-01-01') AS a FROM d
SELECT COUNT(DISTINCT date_trunc('year', time)) AS c FROM d
SELECT DATE '2024-01-31' + INTERVAL '1 month' AS a
SELECT time::DATE - DATE '2024-01-01' AS a FROM d
SELECT name, name LIKE '%n%' AS a, name ILIKE 'B%' AS b, name NOT LIKE '_o%' AS c FROM c
SELECT alt LIKE '100\%' AS a, alt LIKE '%\_' AS b, alt LIKE '' AS d FROM c
SELECT name FROM c WHERE name = 'Bo''nn'
SELECT length(name) AS l, upper(name) AS u, substr(name, 2, 2) AS s, trim(name) AS t, replace(name, 'o', '0') AS r FROM c
SELECT MIN(name) AS a, MAX(name) AS b, COUNT(name) AS n FROM c
SELECT MIN(alt) AS a, MAX(alt) AS b FROM c WHERE pop > 4
SELECT MIN(alt) AS a FROM c WHERE pop > 400
SELECT pop > 4 AS p, MIN(alt) AS a, MAX(name) AS b FROM c GROUP BY 1
SELECT alt, COUNT(*) AS c FROM c GROUP BY alt
SELECT substr(name,1,1) AS f, SUM(pop) AS s FROM c GROUP BY 1
SELECT name < 'N' AS a, name >= alt AS b FROM c
SELECT CASE WHEN pop > 4 THEN name ELSE alt END AS a FROM c
SELECT CASE WHEN pop > 4 THEN 'big' ELSE 'small' END AS a, COUNT(*) AS c FROM c GROUP BY 1
SELECT CASE WHEN pop > 4 THEN 'big' WHEN pop > 2 THEN NULL ELSE 'small' END AS a, SUM(pop) AS c FROM c GROUP BY 1
SELECT COALESCE(NULLIF(alt, 'x'), name) AS a FROM c
SELECT a.name FROM c a JOIN c b ON a.name = b.alt
SELECT name IN ('Oslo', 'x', NULL) AS a FROM c
SELECT COUNT(DISTINCT alt) AS a FROM c
SELECT i,j, SUM(n) OVER (PARTITION BY k) AS s, COUNT(*) OVER (PARTITION BY k) AS c FROM t WHERE n < 100 AND n > -100
SELECT i,j, SUM(tame) OVER (PARTITION BY k) AS s, COUNT(k) OVER (PARTITION BY k) AS c FROM t
SELECT i,j, SUM(tame) OVER (PARTITION BY b, i) AS s FROM t
SELECT i,j, AVG(tame) OVER (PARTITION BY tame > 0) AS s FROM t
SELECT i,j, STDDEV(tame) OVER (PARTITION BY i) AS s, MAX(tame) OVER () AS m FROM t
SELECT k, SUM(SUM(tame)) OVER () AS s FROM t GROUP BY k
SELECT k, SUM(tame) / SUM(SUM(tame)) OVER () AS s FROM t GROUP BY k
SELECT i,j, SUM(tame) OVER (PARTITION BY NULL) AS s FROM t
SELECT i,j, COUNT(*) OVER (PARTITION BY i) AS s FROM t WHERE n > 1
SELECT i,j, SUM(n) OVER (PARTITION BY i) - n AS s FROM t
SELECT * FROM (SELECT i, j, tame, MAX(tame) OVER (PARTITION BY i) AS m FROM t) q WHERE tame = m
SELECT val, SUM(val) OVER () AS s FROM e
SELECT date_part('month', time) AS m, AVG(x) OVER (PARTITION BY date_part('month', time)) AS a FROM d
SELECT y, SUM(x) OVER (PARTITION BY y) AS a FROM nul
SELECT y, SUM(x) OVER (PARTITION BY x IS NULL) AS a FROM nul
SELECT s.k, SUM(t.tame) OVER (PARTITION BY t.k) AS a FROM s LEFT JOIN t ON s.k = t.k
SELECT "VaL", "Dim X" FROM "MiXed"
SELECT m."VaL" AS "X y" FROM "MiXed" m WHERE "Dim X" = 1
SELECT K, Q FROM S
WITH s AS (SELECT k, q * 2 AS q FROM s) SELECT SUM(q) AS r FROM s
WITH t AS (SELECT 1 AS a) SELECT * FROM t
WITH a AS (SELECT k FROM s), b AS (SELECT k FROM a WHERE k > 1) SELECT a.k, b.k AS k2 FROM a LEFT JOIN b ON a.k=b.k
WITH a AS (SELECT CASE WHEN k > 1 THEN 1 ELSE 2.5 END AS v FROM s) SELECT v / 2 AS h, SUM(v) OVER () AS w FROM a
SELECT x.k, y.k AS k2 FROM s x, s y WHERE x.k = y.m
SELECT k AS k1, k AS k2 FROM s
SELECT COUNT(*) FROM s
SELECT SUM(q), MAX(q) FROM s
SELECT * FROM s, one
SELECT s.* FROM s JOIN t ON s.k = t.k
SELECT t.i, s.* FROM s JOIN t USING (k)
SELECT k, SUM(tame) AS s FROM s JOIN t USING (k) GROUP BY k
SELECT * FROM e
SELECT i FROM e ORDER BY i LIMIT 3
SELECT COUNT(*) AS c, SUM(m) AS s, AVG(val) AS a, MIN(m) AS l FROM e
SELECT i, SUM(m) AS s FROM e GROUP BY i
SELECT * FROM one
SELECT x + y AS a FROM one WHERE y > 2
SELECT COUNT(*) AS c FROM one
SELECT z, x FROM bo WHERE z
SELECT z, x FROM bo WHERE NOT z
SELECT z, SUM(x) AS s FROM bo GROUP BY z
SELECT z, x FROM ui WHERE z > 5
SELECT MAX(z) AS a, MIN(z) AS b FROM ui
SELECT z FROM ui ORDER BY z DESC
SELECT SUM(z) AS a FROM ui
SELECT x FROM fl WHERE z = 0
SELECT x FROM fl WHERE z >= 0
SELECT x FROM fl WHERE z < 0
SELECT x FROM fl WHERE z IN (0.0)
SELECT x FROM fl WHERE z = -0.0
SELECT i,j FROM t WHERE v = 0
SELECT i,j FROM t WHERE v IN (0.0, 1.5)
SELECT i,j FROM t WHERE v > 1e308
SELECT i,j FROM t WHERE v <> v
SELECT i,j FROM t WHERE isnan(v)
SELECT v, -v AS m, abs(v) AS a, v*0 AS z FROM t
SELECT nanvl(v, 1.0) AS a FROM t
SELECT SUM(v) AS s FROM t WHERE NOT isnan(v) AND abs(v) < 1e300
SELECT i,j FROM t WHERE v BETWEEN -1 AND 1
SELECT 1 WHERE 1 = 0
SELECT 1 AS a WHERE NULL
VALUES (1, 'a'), (2, 'b')
SELECT a FROM (VALUES (1),(NULL),(3)) q(a) WHERE a > 1
SELECT SUM(a) AS s, COUNT(a) AS c, COUNT(*) AS d FROM (VALUES (1),(NULL),(3)) q(a)
SELECT a, COUNT(*) AS c FROM (VALUES (1),(NULL),(1)) q(a) GROUP BY a
SELECT a, b FROM (VALUES (1, 2.5), (NULL, 1)) q(a,b) ORDER BY a DESC
SELECT s.k FROM s JOIN (VALUES (0),(9)) q(a) ON s.k = q.a
