"""Algebraic identities of the operators as rules: left side, right side, conditions.

Every rule holds under wraparound, for signed and unsigned integers alike, and its right side costs no more than its
left. Sums have a normal form instead (`sums`), and quotients of sums an algorithm (`division`).
"""

from __future__ import annotations

from convgen.ir.expr import Max, Min, Select, Uniform, eq, ne
from convgen.ir.simplify.rules import Rules, c0, c1, exact, fits, p, u, v, w, x, y, z, zero

SUMS = Rules(
    ("add.zero", x + 0, x),
    ("add.itself", x + x, x * 2),
    ("add.difference", (x - y) + y, x),
    ("add.negative", (0 - x) + y, y - x),
    ("sub.zero", x - 0, x),
    ("sub.itself", x - x, 0),
    ("sub.sum", (x + y) - x, y),
    ("sub.from_sum", x - (x + y), 0 - y),
    ("sub.difference", x - (x - y), y),
    ("sub.swapped", 0 - (x - y), y - x),
    ("sub.negative", x - (0 - y), x + y),
)

PRODUCTS = Rules(
    ("mul.zero", x * 0, 0),
    ("mul.one", x * 1, x),
    ("mul.constants", (x * c0) * c1, x * (c0 * c1)),
    ("mul.negative", (0 - x) * c0, x * (0 - c0)),
    ("mul.quotient", (x // c0) * c0, x, ne(c0, 0), eq(x % c0, 0)),
)

QUOTIENTS = Rules(
    ("div.one", x // 1, x),
    ("div.zero", zero // x, 0),
    ("div.itself", x // x, 1),
    ("div.small", x // y, 0, x >= 0, x < y),
    ("div.of_product", (x * y) // y, x, exact(x * y)),
    ("div.common_factor", (x * z) // (y * z), x // y, exact(x * z), exact(y * z)),
    ("mod.one", x % 1, 0),
    ("mod.zero", zero % x, 0),
    ("mod.itself", x % x, 0),
    ("mod.small", x % y, x, x >= 0, x < y),
    ("mod.of_product", (x * y) % y, 0, exact(x * y)),
    ("mod.common_factor", (x * z) % (y * z), (x % y) * z, exact(x * z), exact(y * z)),
    ("mod.of_mod", (x % c0) % c1, x % c1, c1 > 0, eq(c0 % c1, 0)),
    ("mod.of_low_bits", (x & c0) % c1, x % c1, c0 > 0, c1 > 0, eq(c0 & (c0 + 1), 0), eq((c0 + 1) % c1, 0)),
)

ORDER = Rules(
    ("lt.itself", x < x, 0),
    ("lt.offset", x + c0 < c1, x < c1 - c0, fits(c1 - c0), exact(x + c0)),
    ("lt.offset_right", c1 < x + c0, c1 - c0 < x, fits(c1 - c0), exact(x + c0)),
    ("lt.minus", x - c0 < c1, x < c1 + c0, fits(c1 + c0), exact(x - c0)),
    ("lt.minus_right", c1 < x - c0, c1 + c0 < x, fits(c1 + c0), exact(x - c0)),
    ("lt.from", c0 - x < c1, c0 - c1 < x, fits(c0 - c1), exact(c0 - x)),
    ("lt.from_right", c1 < c0 - x, x < c0 - c1, fits(c0 - c1), exact(c0 - x)),
    ("lt.common_term", x + y < x + z, y < z, exact(x + y), exact(x + z)),
    ("lt.more", x < x + y, y > 0, exact(x + y)),
    ("lt.less", x + y < x, y < 0, exact(x + y)),
    ("lt.common_factor", x * c0 < y * c0, x < y, c0 > 0, exact(x * c0), exact(y * c0)),
    ("lt.factor", x * c0 < c1, x < (c1 + c0 - 1) // c0, c0 > 0, exact(x * c0)),
    ("lt.factor_right", c1 < x * c0, c1 // c0 < x, c0 > 0, exact(x * c0)),
    ("lt.quotient", x // c0 < c1, x < c0 * c1, c0 > 0, fits(c0 * c1)),
    ("lt.quotient_right", c1 < x // c0, c0 * c1 + (c0 - 1) < x, c0 > 0, fits(c0 * c1 + (c0 - 1))),
    ("le.itself", x <= x, 1),
    ("le.offset", x + c0 <= c1, x <= c1 - c0, fits(c1 - c0), exact(x + c0)),
    ("le.offset_right", c1 <= x + c0, c1 - c0 <= x, fits(c1 - c0), exact(x + c0)),
    ("le.minus", x - c0 <= c1, x <= c1 + c0, fits(c1 + c0), exact(x - c0)),
    ("le.minus_right", c1 <= x - c0, c1 + c0 <= x, fits(c1 + c0), exact(x - c0)),
    ("le.from", c0 - x <= c1, c0 - c1 <= x, fits(c0 - c1), exact(c0 - x)),
    ("le.from_right", c1 <= c0 - x, x <= c0 - c1, fits(c0 - c1), exact(c0 - x)),
    ("le.common_term", x + y <= x + z, y <= z, exact(x + y), exact(x + z)),
    ("le.more", x <= x + y, y >= 0, exact(x + y)),
    ("le.less", x + y <= x, y <= 0, exact(x + y)),
    ("le.common_factor", x * c0 <= y * c0, x <= y, c0 > 0, exact(x * c0), exact(y * c0)),
    ("le.factor", x * c0 <= c1, x <= c1 // c0, c0 > 0, exact(x * c0)),
    ("le.factor_right", c1 <= x * c0, (c1 + c0 - 1) // c0 <= x, c0 > 0, exact(x * c0)),
    ("le.quotient", x // c0 <= c1, x <= c0 * c1 + (c0 - 1), c0 > 0, fits(c0 * c1 + (c0 - 1))),
    ("le.quotient_right", c1 <= x // c0, c0 * c1 <= x, c0 > 0, fits(c0 * c1)),
)

EQUALITY = Rules(
    ("eq.itself", eq(x, x), 1),
    ("eq.offset", eq(x + c0, c1), eq(x, c1 - c0)),
    ("eq.minus", eq(x - c0, c1), eq(x, c1 + c0)),
    ("eq.from", eq(c0 - x, c1), eq(x, c0 - c1)),
    ("eq.difference", eq(x - y, 0), eq(x, y)),
    ("eq.common_term", eq(x + y, x + z), eq(y, z)),
    ("eq.more", eq(x + y, x), eq(y, 0)),
    ("eq.factor", eq(x * c0, c1), eq(x, c1 // c0), ne(c0, 0), eq(c1 % c0, 0), exact(x * c0)),
    ("eq.not_divisible", eq(x * c0, c1), 0, ne(c0, 0), ne(c1 % c0, 0), exact(x * c0)),
    ("eq.common_factor", eq(x * c0, y * c0), eq(x, y), ne(c0, 0), exact(x * c0), exact(y * c0)),
    ("eq.quotient_zero", eq(x // c0, 0), x < c0, c0 > 0, x >= 0),
    ("ne.itself", ne(x, x), 0),
    ("ne.offset", ne(x + c0, c1), ne(x, c1 - c0)),
    ("ne.minus", ne(x - c0, c1), ne(x, c1 + c0)),
    ("ne.from", ne(c0 - x, c1), ne(x, c0 - c1)),
    ("ne.difference", ne(x - y, 0), ne(x, y)),
    ("ne.common_term", ne(x + y, x + z), ne(y, z)),
    ("ne.more", ne(x + y, x), ne(y, 0)),
    ("ne.factor", ne(x * c0, c1), ne(x, c1 // c0), ne(c0, 0), eq(c1 % c0, 0), exact(x * c0)),
    ("ne.not_divisible", ne(x * c0, c1), 1, ne(c0, 0), ne(c1 % c0, 0), exact(x * c0)),
    ("ne.common_factor", ne(x * c0, y * c0), ne(x, y), ne(c0, 0), exact(x * c0), exact(y * c0)),
    ("ne.quotient_zero", ne(x // c0, 0), c0 <= x, c0 > 0, x >= 0),
)

EXTREMA = Rules(
    ("min.itself", Min(x, x), x),
    ("min.constants", Min(Min(x, c0), c1), Min(x, Min(c0, c1))),
    ("min.again", Min(Min(x, y), x), Min(x, y)),
    ("min.of_max", Min(Max(x, y), x), x),
    ("min.clamped", Min(Max(x, c0), c1), c1, c1 <= c0),
    ("max.itself", Max(x, x), x),
    ("max.constants", Max(Max(x, c0), c1), Max(x, Max(c0, c1))),
    ("max.again", Max(Max(x, y), x), Max(x, y)),
    ("max.of_min", Max(Min(x, y), x), x),
    ("max.clamped", Max(Min(x, c0), c1), c1, c0 <= c1),
)

BITS = Rules(
    ("and.itself", u & u, u),
    ("and.zero", u & 0, 0),
    ("and.ones", u & -1, u),
    ("and.constants", (x & c0) & c1, x & (c0 & c1)),
    ("and.complement", u & ~u, 0),
    ("and.absorbed", u & (u | v), u),
    ("and.low_bits", x & c0, x, c0 > 0, eq(c0 & (c0 + 1), 0), x >= 0, x <= c0),
    ("and.of_mod", (x % c0) & c1, x & c1, c0 > 0, c1 > 0, eq(c1 & (c1 + 1), 0), eq(c0 % (c1 + 1), 0)),
    ("or.itself", u | u, u),
    ("or.zero", u | 0, u),
    ("or.ones", u | -1, -1),
    ("or.constants", (x | c0) | c1, x | (c0 | c1)),
    ("or.complement", u | ~u, -1),
    ("or.absorbed", u | (u & v), u),
    ("xor.itself", u ^ u, 0),
    ("xor.zero", u ^ 0, u),
    ("xor.ones", u ^ -1, ~u),
    ("xor.constants", (x ^ c0) ^ c1, x ^ (c0 ^ c1)),
    ("xor.again", (u ^ v) ^ v, u),
    ("not.not", ~~u, u),
    ("not.lt", ~(x < y), y <= x),
    ("not.le", ~(x <= y), y < x),
    ("not.eq", ~eq(u, v), ne(u, v)),
    ("not.ne", ~ne(u, v), eq(u, v)),
)

SHIFTS = Rules(("shl.none", x << 0, x), ("shl.zero", zero << x, 0), ("shr.none", x >> 0, x), ("shr.zero", zero >> x, 0))

CHOICE = Rules(
    ("select.same", Select(p, u, u), u),
    ("select.not", Select(~p, u, v), Select(p, v, u)),
    ("select.again", Select(p, Select(p, u, v), w), Select(p, u, w)),
    ("select.else_again", Select(p, u, Select(p, v, w)), Select(p, u, w)),
    ("uniform.again", Uniform(Uniform(u)), Uniform(u)),
)

TABLES = (SUMS, PRODUCTS, QUOTIENTS, ORDER, EQUALITY, EXTREMA, BITS, SHIFTS, CHOICE)
