"""The grammar of a case."""

from fnmatch import fnmatchcase

import pytest

from pytest_flagperf.case import Case, CaseError, Shape, case_of, folder_pattern, without_repeat

VALID = [
    "glm:pytorch:A100:2:8:3",
    "bert:pytorch_1.8:A100:1:8:1",
    "llama3_8B:megatron:TG-V200:1:16:1",
    "resnet50:tensorflow2:TP1PP1SH2SP8A10040G:10:100:12",
    "mask_rcnn:pytorch_2.15.0+cu128_lts:R200x2:1:1:1",
    "glm:pytorch:A100:2:8:3:precision-bf16",
    "mask_rcnn:pytorch_1.8:TG-V200:1:1:1:learning_rate-1e-3+seed--1+train_batch_size-8",
]


def test_a_case_knows_its_parts() -> None:
    assert [str(Case.parse(text)) for text in VALID] == VALID
    case = Case.parse("bert:pytorch_1.8:A100:2:8:3")
    assert (case.framework_name, case.framework_version) == ("pytorch", "1.8")
    assert (case.shape, case.shape.cards, case.folder) == (Shape(2, 8), 16, "bert_pytorch_1.8_A100_2_8_3")
    assert Case.parse("bert:pytorch:A100:1:1:1").framework_version is None


def test_a_variant_is_read_from_a_name_and_from_a_folder() -> None:
    case = Case.parse(VALID[-1])
    assert case.variant == (("learning_rate", "1e-3"), ("seed", "-1"), ("train_batch_size", "8"))
    assert str(case.without_variant) == VALID[-1].rpartition(":")[0]
    assert [str(Case.of_folder(Case.parse(text).folder)) for text in VALID[-2:]] == VALID[-2:]
    assert without_repeat(VALID[-1]) == case.without_repeat == VALID[-1].replace(":1:1:1:", ":1:1:")
    assert case_of(case.without_repeat) is None


def test_the_folders_of_a_case_match_for_any_number_of_rounds_and_not_for_another_variant() -> None:
    def matches(name: str, other: str) -> bool:
        return fnmatchcase(Case.parse(name).folder, folder_pattern(Case.parse(other).without_repeat))

    assert matches("m:f:h:1:1:3:seed-1", "m:f:h:1:1:1:seed-1")
    assert matches("m:f:h:1:1:3", "m:f:h:1:1:1")
    assert not matches("m:f:h:1:1:3:seed-2", "m:f:h:1:1:1:seed-1")
    assert not matches("m:f:h:1:1:1", "m:f:h:1:1:1:seed-1")


@pytest.mark.parametrize(
    ("variant", "problem"),
    [
        ("", r"variant has ''; expected key-value"),
        ("precision", r"variant has 'precision'; expected key-value"),
        ("precision=bf16", r"expected key-value"),
        ("a-1+", r"variant has ''"),
        ("a-../x", r"variant has 'a-../x'"),
        ("b-1+a-2", r"variant has the keys b, a; expected them in alphabetical order, each once"),
        ("a-1+a-2", r"keys a, a"),
    ],
)
def test_a_variant_has_keys_in_order_and_values_that_names_of_folders_allow(variant: str, problem: str) -> None:
    with pytest.raises(CaseError, match=problem):
        Case.parse(f"m:f:h:1:1:1:{variant}")


@pytest.mark.parametrize("count", ["0", "-1", "+1", "01", "1.0", "", " 1", "1_0", "١", "one", "1" * 30])
@pytest.mark.parametrize("field", [3, 4, 5])
def test_a_count_is_a_plain_whole_number_from_one(field: int, count: str) -> None:
    terms = ["m", "f", "h", "1", "1", "1"]
    terms[field] = count
    with pytest.raises(CaseError, match=r"expected a whole number from 1"):
        Case.parse(":".join(terms))


@pytest.mark.parametrize("name", ["", "a b", "é", "a/b", "../a", ".hidden", "-a", "a\n"])
@pytest.mark.parametrize("field", [0, 1, 2])
def test_a_name_cannot_leave_its_folder(field: int, name: str) -> None:
    terms = ["m", "f", "h", "1", "1", "1"]
    terms[field] = name
    with pytest.raises(CaseError, match=r" is .*; expected "):
        Case.parse(":".join(terms))


def test_all_problems_of_a_case_are_reported_at_once_however_it_is_made() -> None:
    with pytest.raises(CaseError) as caught:
        Case.parse("a b:pytorch_:A100:0:x:-1")
    assert len(caught.value.problems) == 5
    assert all(problem.startswith("case 'a b:pytorch_:A100:0:x:-1': ") for problem in caught.value.problems)
    with pytest.raises(CaseError, match=r"got 4 fields; expected the 6 fields .*; missing: nproc, repeat"):
        Case.parse("a:b:c:1")
    with pytest.raises(CaseError, match=r"too many: 'x'"):
        Case.parse("a:b:c:1:1:1:2:x")
    assert str(Case("a", "b", "c", 1, 2)) == "a:b:c:1:2:1"
    with pytest.raises(CaseError, match="nproc is '0'"):
        Case("a", "b", "c", 1, 0)


def test_shapes_are_read_alone_and_in_lists_whose_invalid_ones_are_reported_at_once() -> None:
    assert Shape.parse("2x8") == Shape(2, 8)
    assert Shape.parse_list("1x1, 1x8,1x1") == (Shape(1, 1), Shape(1, 8))
    assert str(Shape(2, 8)) == "2x8"
    with pytest.raises(CaseError) as caught:
        Shape.parse_list("1x1,bad,,0x1")
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("text", ["", "2", "x8", "2x", "0x8", "2X8", "2x8x1", "02x8", "2 x 8"])
def test_an_invalid_shape_is_refused(text: str) -> None:
    with pytest.raises(CaseError, match="expected NxP"):
        Shape.parse(text)
