"""Mutations of exact retraction, types, names, and what operators forget."""

from __future__ import annotations

from mutate import Mutation

EXACT = "tests/unit/operators/test_exact_sums.py::"
BOUNDS = "tests/unit/operators/test_time_bounds.py::"
GRAPH = "tests/unit/api/test_graph_errors.py::"
RETRACTION = "tests/operators/test_aggregate_types.py::"
TYPES = "tests/operators/test_types.py::"
JOINS = "tests/operators/test_interval_join.py::"
NAMES = "tests/integration/pipeline/test_edges_of_input.py::"

MUTATIONS = [
    # Doubles under retraction
    Mutation(
        RETRACTION + "test_what_is_left_equals_batch_whatever_came_and_went",
        "operators/aggregate/analyze.py",
        "    if changes:\n        return ExactSumFold(",
        "    if changes and False:\n        return ExactSumFold(",
    ),
    Mutation(
        EXACT + "test_a_sum_is_the_double_nearest_to_the_exact_sum",
        "operators/aggregate/functions/exact.py",
        "    whole |= dropped.astype(np.uint64)\n",
        "",
    ),
    Mutation(
        EXACT + "test_a_sum_is_the_double_nearest_to_the_exact_sum",
        "operators/aggregate/functions/exact.py",
        "_WEIGHTS_SAFE = 1 << 29",
        "_WEIGHTS_SAFE = 1 << 62",
    ),
    Mutation(
        EXACT + "test_numbers_whose_highest_bit_is_that_of_a_limb_keep_their_sign",
        "operators/aggregate/functions/exact.py",
        "    high += (cells[rows, high] >> (BITS - 1)) != (sign & 1)\n",
        "",
    ),
    Mutation(
        EXACT + "test_a_sum_is_the_double_nearest_to_the_exact_sum",
        "operators/aggregate/functions/variance.py",
        "add(i + j, left * one[j], -1 if i == j else -2)",
        "add(i + j, left * one[j], -1)",
    ),
    Mutation(
        EXACT + "test_a_mean_is_among_the_doubles_where_its_sum_is_not",
        "operators/aggregate/functions/sums.py",
        "        return total.over(np.where(n == 0, 1, n))",
        "        return total.doubles() / np.where(n == 0, 1, n)",
    ),
    Mutation(
        EXACT + "test_an_outlier_that_was_retracted_is_forgotten",
        "operators/aggregate/functions/sums.py",
        "        value = np.where((nan > 0) | ((inf > 0) & (ninf > 0)), np.nan, value)\n",
        "",
    ),
    # Integers, decimals and weights
    Mutation(
        EXACT + "test_sums_of_integers_are_exact_or_refused",
        "operators/aggregate/functions/sums.py",
        "        if reach + largest_sum(before, 1) < SAFE:",
        "        if reach + largest_sum(before, 1) < SAFE * 2**70:",
    ),
    Mutation(
        EXACT + "test_sums_of_integers_are_exact_or_refused",
        "operators/aggregate/functions/sums.py",
        "        if pc.any(outside).as_py():",
        "        if False:",
    ),
    Mutation(
        EXACT + "test_sums_of_decimals_are_exact_at_every_precision",
        "operators/aggregate/functions/sums.py",
        "            values = pc.multiply(values, pa.array(units).cast(_LONG))\n",
        "            values = pc.multiply(values, pa.array(np.sign(units)).cast(_LONG))\n",
    ),
    Mutation(
        EXACT + "test_a_count_that_leaves_64_bits_is_an_error",
        "operators/aggregate/functions/base.py",
        "            if (np.abs(total.astype(np.float64) - rough) > SAFE).any():",
        "            if False:",
    ),
    Mutation(
        EXACT + "test_a_row_without_a_weight_is_an_error",
        "operators/base.py",
        "    if column.null_count:\n        raise",
        "    if False:\n        raise",
    ),
    # What is remembered
    Mutation(
        BOUNDS + "test_a_key_that_is_behind_the_watermark_may_come_again_at_once",
        "operators/dedupe/execute.py",
        "        fresh = pa.array(~self._remembered(answer, context))",
        "        fresh = pa.array(~answer.found)",
    ),
    Mutation(
        BOUNDS + "test_a_key_that_the_ttl_has_forgotten_takes_its_timer_with_it",
        "operators/apply/execute.py",
        "            moved = pa.array(~rows_equal([before], [wake]) | asked.armed)",
        "            moved = pa.array(~rows_equal([before], [wake]))",
    ),
    Mutation(
        BOUNDS + "test_dedupe_does_not_depend_on_how_epochs_are_cut",
        "operators/dedupe/execute.py",
        '            "duplicates": rows.num_rows - chosen.num_rows,\n',
        "",
    ),
    Mutation(
        BOUNDS + "test_rows_too_late_for_a_ttl_keep_their_weight",
        "operators/apply/execute.py",
        "        return self.row.append(pa.field(WEIGHT, pa.int64())) if self.weighted else "
        "self.row",
        "        return self.row",
    ),
    Mutation(
        JOINS + "test_interval_joins_equal_the_batch_answer_on_time",
        "operators/join/analyze.py",
        "    given = [] if timed else",
        "    given = [] if False else",
    ),
    Mutation(
        JOINS + "test_interval_joins_equal_the_batch_answer_on_time",
        "operators/join/analyze.py",
        "            if late_rows:\n",
        "            if False:\n",
    ),
    # Names and types
    Mutation(
        GRAPH + "test_names_that_outputs_use_are_refused_wherever_they_are_declared",
        "spark/ddl.py",
        "        if name.lower() in RESERVED:",
        "        if name in RESERVED:",
    ),
    Mutation(
        GRAPH + "test_names_that_outputs_use_are_refused_wherever_they_are_declared",
        "runtime/graph.py",
        "        check_columns(list(node.columns or ()), node.name)\n",
        "",
    ),
    Mutation(
        TYPES + "test_types_that_cannot_be_right_are_refused_before_anything_runs",
        "spark/types.py",
        "        return bool(kind.isUTF8BinaryCollation())",
        "        return True",
    ),
    Mutation(
        TYPES + "test_types_that_cannot_be_right_are_refused_before_anything_runs",
        "spark/types.py",
        "        if isinstance(part, T.MapType) or not _is_kept(part):",
        "        if isinstance(kind, T.MapType) or not _is_kept(part):",
    ),
    Mutation(
        TYPES + "test_types_that_are_kept_are_equal_exactly_where_they_are_in_batch",
        "spark/types.py",
        '        body = f"xxhash64(size({text}), transform({text}, {name} -> {inner}))"',
        '        body = f"xxhash64({text})"',
    ),
    Mutation(
        TYPES + "test_text_with_a_length_is_refused_where_it_is_declared",
        "spark/ddl.py",
        "        if sized is not None:",
        "        if False:",
    ),
    Mutation(
        NAMES + "test_a_null_weight_is_refused_with_its_source_and_column",
        "runtime/analysis.py",
        "F.expr(f\"CASE WHEN {name} IS NULL THEN raise_error('{text}') ELSE {name} END\")",
        'F.expr(f"coalesce({name}, 1)")',
    ),
    Mutation(
        EXACT + "test_a_mean_is_off_by_less_than_one_unit_in_the_last_place",
        "operators/aggregate/functions/exact.py",
        " - error + self.rest - quotient * beyond",
        " - error - quotient * beyond",
    ),
]
