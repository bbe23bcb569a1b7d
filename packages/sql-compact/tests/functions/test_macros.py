import pyarrow as pa
import pytest
from datafusion import SessionContext
from hypothesis import given
from hypothesis import strategies as st
from sql_compact.errors import InvalidSQL, ShapeError, UnsupportedSQL
from sql_compact.functions.macros import (
    CommonTable,
    expand_macros,
    identifier,
    join_ctes,
    split_ctes,
)
from sql_compact.functions.udf import register_functions
from sqlglot.dialects.postgres import Postgres

DROPOUT = [
    ("dropout_keep(p, s, t, 1, i)", "dropout_keep_1(p, s, t, 1, i)"),
    ("dropout_keep(p, s, t, 1, i, j, k, l)", "dropout_keep_4(p, s, t, 1, i, j, k, l)"),
    (
        "Dropout_Keep (p, s, t, 3 * 2, x.i, f(a, b))",
        "Dropout_Keep_2 (p, s, t, 3 * 2, x.i, f(a, b))",
    ),
    ("a * dropout_keep(p,s,t,/* , */1,i) + 1", "a * dropout_keep_1(p,s,t,/* , */1,i) + 1"),
    ("dropout_keep_1(p, s, t, 1, i)", "dropout_keep_1(p, s, t, 1, i)"),
]


@pytest.mark.parametrize(("text", "expected"), DROPOUT)
def test_dropout_keep_is_named_by_its_number_of_indices(text, expected):
    assert expand_macros(f"SELECT {text} FROM x") == f"SELECT {expected} FROM x"


@pytest.mark.parametrize("arguments", ["", "p, s, t, 1", "p, s, t, 1, i, j, k, l, m"])
def test_dropout_keep_needs_one_to_four_indices(arguments):
    with pytest.raises(ShapeError, match="1 to 4 indices"):
        expand_macros(f"SELECT dropout_keep({arguments})")


UNTOUCHED = [
    "SELECT erf FROM x",
    "SELECT x.erf, x.erf AS floor FROM x",
    'SELECT "erf"(x.v), `erf` FROM x',
    "SELECT 'erf(x.v)', 'it''s erf(1)', $$erf(2)$$ FROM x",
    "SELECT 1 -- erf(x)\n/* erf(x) /* floor(y) */ */ FROM x",
    "WITH erf (a) AS (SELECT 1), floor(b) AS MATERIALIZED (SELECT 2) SELECT a FROM erf",
    "SELECT t.a FROM (SELECT 1) AS erf(a) JOIN floor (b) ON TRUE",
    "SELECT sin(x), exp(x), power(x, 2), log2(x), my_erf(x) FROM t",
    "SELECT s.erf(x) FROM t",
]


@pytest.mark.parametrize("sql", UNTOUCHED)
def test_names_strings_and_comments_are_left_verbatim(sql):
    assert expand_macros(sql, differentiate=True) == sql


def test_only_dropout_is_expanded_unless_differentiating():
    sql = "SELECT erf(x), floor(y), log(2, x) FROM t"
    assert expand_macros(sql) == sql
    assert expand_macros("log(x)") == "log10(x)"


DERIVATIVES = [
    (
        "ERF( x.v )",
        "(ddx_stop_gradient(ERF( x.v ))"
        " + ddx_stop_gradient(1.1283791670955126 * exp(-( x.v ) * ( x.v )))"
        " * (( x.v ) - ddx_stop_gradient( x.v )))",
    ),
    ("floor(x.v / 2)", "ddx_stop_gradient(floor(x.v / 2))"),
    ("round(erf(x), 2)", "ddx_stop_gradient(round(erf(x), 2))"),
    ("log(2, floor(x))", "(ln( ddx_stop_gradient(floor(x))) / ln(2))"),
    ("Log (x)", "log10 (x)"),
    (
        "expm1(dropout_keep(p, s, t, 1, i))",
        "(ddx_stop_gradient(expm1(dropout_keep_1(p, s, t, 1, i)))"
        " + ddx_stop_gradient(exp(dropout_keep_1(p, s, t, 1, i)))"
        " * ((dropout_keep_1(p, s, t, 1, i))"
        " - ddx_stop_gradient(dropout_keep_1(p, s, t, 1, i))))",
    ),
]


@pytest.mark.parametrize(("call", "expected"), DERIVATIVES)
def test_differentiated_calls_become_the_stop_gradient_identity(call, expected):
    assert expand_macros(f"SELECT {call} FROM x", differentiate=True) == f"SELECT {expected} FROM x"


def test_nested_calls_are_expanded_inside_out():
    inner = expand_macros("erf(x)", differentiate=True)
    outer = expand_macros("erf(erf(x))", differentiate=True)
    assert outer == (
        "(ddx_stop_gradient(erf(erf(x)))"
        " + ddx_stop_gradient(1.1283791670955126 * exp(-(erf(x)) * (erf(x))))"
        f" * (({inner}) - ddx_stop_gradient({inner})))"
    )


SMOOTH = [
    "erf(V)",
    "erfc(V)",
    "log1p(V)",
    "expm1(V)",
    "cbrt(V)",
    "cot(V)",
    "log(V)",
    "log(V + 2.0, V)",
    "asinh(V)",
    "acosh(V + 1.0)",
    "atanh(V)",
    "degrees(V)",
    "radians(V)",
    "atan2(V, 0.3)",
    "atan2(0.3, V)",
    "atan2(V * V, V + 0.1)",
    "erf(sin(cbrt(V)))",
]


def _context(values):
    context = SessionContext()
    register_functions(context)
    rows = pa.RecordBatch.from_pydict({"c": list(range(len(values))), "v": values})
    context.register_record_batches("w", [[rows]])
    return context


@pytest.mark.parametrize("expression", SMOOTH)
def test_ddxdb_differentiates_the_identity(expression):
    from ddxdb import ad

    values, h = [0.2, 0.45, 0.7], 1e-6

    def at(shift):
        query = f"SELECT c, {expression.replace('V', f'(v + {shift!r})')} AS r FROM w ORDER BY c"
        return _context(values).sql(query).to_pydict()["r"]

    differences = [(up - down) / (2 * h) for up, down in zip(at(h), at(-h), strict=True)]
    body = expand_macros(
        f"SELECT SUM({expression.replace('V', 'v')}) AS l FROM w", differentiate=True
    )
    result = ad.sql(_context(values), f"WITH loss AS ({body}) SELECT c, grad(loss, v) AS g FROM w")
    got = [row["g"] for row in sorted(result.to_pylist(), key=lambda row: row["c"])]
    assert got == pytest.approx(differences, rel=1e-7)


def test_no_gradient_flows_through_piecewise_constants():
    from ddxdb import ad

    steps = "floor(v) + signum(v) + round(v, 1) + trunc(v) + ceil(v)"
    body = expand_macros(f"SELECT SUM(v * (1.0 + {steps})) AS l FROM w", differentiate=True)
    result = ad.sql(_context([0.2]), f"WITH loss AS ({body}) SELECT c, grad(loss, v) AS g FROM w")
    assert result.to_pylist()[0]["g"] == pytest.approx(1 + 0 + 1 + 0.2 + 0 + 1)


def test_ctes_are_taken_apart_verbatim():
    sql = """-- first ( comment
    WITH /* ( */ "My ""T" (a, "b c") AS ( SELECT ')', $$)$$ -- )
      FROM t ), recursive AS NOT MATERIALIZED (SELECT (1))
    SELECT (SELECT 1) FROM "My ""T" -- end
    ; -- after"""
    tables, final = split_ctes(sql)
    assert tables == [
        CommonTable('"My ""T"', ("a", '"b c"'), " SELECT ')', $$)$$ -- )\n      FROM t "),
        CommonTable("recursive", None, "SELECT (1)"),
    ]
    assert final == 'SELECT (SELECT 1) FROM "My ""T"'
    assert [identifier(tables[0].name), identifier("MyT"), identifier("`A``b`")] == [
        'My "T',
        "myt",
        "A`b",
    ]


def test_a_statement_without_with_is_its_own_final_query():
    assert split_ctes(" SELECT (1) FROM (WITH a AS (SELECT 1) SELECT * FROM a) ; ") == (
        [],
        "SELECT (1) FROM (WITH a AS (SELECT 1) SELECT * FROM a)",
    )


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("", "empty"),
        (" ; ", "empty"),
        ("SELECT 1; SELECT 2", "more than one statement"),
        ("SELECT (1", "unmatched ("),
        ("SELECT 1)", "unmatched )"),
        ("SELECT 'a", "tokens"),
        ("WITH t AS (SELECT 1)", "not followed by a query"),
        ("WITH t SELECT 1", "expected AS"),
        ("WITH t AS SELECT 1", "expected ("),
        ("WITH", "expected a table name"),
        ("WITH t AS (SELECT 1), SELECT 1", "expected AS"),
    ],
)
def test_malformed_statements_are_named(sql, message):
    with pytest.raises(InvalidSQL) as caught:
        split_ctes(sql)
    assert message in str(caught.value)


def test_with_recursive_is_refused():
    with pytest.raises(UnsupportedSQL) as caught:
        split_ctes(
            "with Recursive t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT * FROM t"
        )
    assert caught.value.operator == "WITH RECURSIVE"


WORDS = st.sampled_from(
    [
        "SELECT 1",
        "a",
        "(b)",
        "((c), d)",
        "'x)('",
        '"q)"',
        "-- c (\n",
        "/* ) */",
        "$$)$$",
        "''''",
        "e",
    ]
)
BODIES = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)
NAMES = st.sampled_from(["t", "Big", '"q (1"', "`b)`", '"a""b"', "erf"])
COLUMNS = st.none() | st.lists(NAMES, min_size=1, max_size=3).map(tuple)
TABLES = st.lists(st.builds(CommonTable, NAMES, COLUMNS, BODIES), max_size=4)


@given(TABLES, BODIES)
def test_splitting_undoes_joining(tables, final):
    taken, rest = split_ctes(join_ctes(tables, f"SELECT {final} z ;"))
    assert taken == tables
    assert rest == f"SELECT {final} z"


@given(TABLES, BODIES)
def test_joining_the_pieces_gives_the_same_tokens(tables, final):
    sql = join_ctes(tables, f"SELECT {final} z")
    tokens = [
        [(token.token_type, token.text) for token in Postgres.Tokenizer().tokenize(text)]
        for text in (sql, join_ctes(*split_ctes(sql)))
    ]
    assert tokens[0] == tokens[1]


@given(BODIES)
def test_text_without_calls_is_unchanged(body):
    assert expand_macros(body, differentiate=True) == body
