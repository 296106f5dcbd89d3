from voxelocity_observe.document.blocks import (
    Card,
    Code,
    Document,
    Folded,
    Heading,
    LegendEntry,
    Lines,
    Links,
    Pair,
    Section,
    Table,
    Text,
    TimeBar,
    TimeBars,
)
from voxelocity_observe.document.html import breakable, unbroken, with_code, write_page


def test_numbers_are_tied_to_their_units_and_nothing_else():
    assert unbroken("after 5 min 2 s; 1.9 % of 42 cases in 3 days, 4.8 times") == (
        "after 5\u00a0min\u00a02\u00a0s; 1.9\u00a0% of 42 cases in 3 days, 4.8\u00a0times"
    )


def test_names_and_paths_may_break_between_their_parts_and_figures_may_not():
    assert breakable("/data/a_b.py:12") == "/<wbr>data/<wbr>a_<wbr>b.<wbr>py:12"
    assert breakable("0.48 s of 1.5") == "0.48 s of 1.5"
    assert breakable("<i>.x") == "&lt;i&gt;.x"


def test_words_between_backticks_are_code_and_nothing_is_read_as_markup():
    assert with_code("run `a <b>` for 5 s & more") == ("run <code>a &lt;b&gt;</code> for 5\u00a0s &amp; more")


def test_every_kind_of_block_has_its_own_markup(tmp_path):
    table = Table(caption="Sizes", heads=("What", "ml"), rows=[("liver", "9"), ("sum", "9")], has_total=True)
    blocks = [
        Text(text="Plain."),
        Text(text="How to read `it`.", is_hint=True),
        Heading(text="Below"),
        Lines(lines=["first", "second"]),
        Lines(lines=["/a.pt"], are_code=True),
        Code(text="voxelocity plan --fold 0"),
        Links(title="See", entries=[("there", "There", "it is")]),
        Pair(blocks=[table]),
        Folded(title="More", blocks=[Text(text="Inner.")], is_open=True),
        TimeBars(caption="Time", bars=[TimeBar(parts=[])], legend=[LegendEntry(name="wait", color="red")]),
    ]
    document = Document(
        kind="test",
        title="A & B",
        verdict="It took 5 s.",
        cards=[Card(name="Dice", value="0.9", is_worse=True)],
        sections=[Section(title="Empty", blocks=[]), Section(title="Full", key="there", blocks=blocks)],
        footer="Made by `us`.",
    )
    text = write_page(document, tmp_path / "page.html").read_text(encoding="utf-8")
    for markup in (
        "<title>A &amp; B · Voxelocity</title>",
        "It took 5\u00a0s.",
        '<dd class="value worse">0.9</dd>',
        '<section id="there">',
        "<p>Plain.</p>",
        '<p class="hint">How to read <code>it</code>.</p>',
        "<h3>Below</h3>",
        "<li>first</li>",
        "<li><code>/a.pt</code></li>",
        'plan <span class="word">--fold</span> 0</code></pre>',
        '<a href="#there">There</a>: it is</p>',
        '<div class="pair">',
        "<tfoot>",
        "<details open><summary>More</summary>",
        "<p>Inner.</p>",
        '<span class="swatch" style="--swatch: red"></span>wait</li>',
        "<p>Made by <code>us</code>.</p>",
    ):
        assert markup in text, markup
    assert "Empty" not in text


def test_a_document_as_plain_data_names_its_format_and_keeps_its_figures():
    document = Document(kind="run comparison", title="t", verdict="v", notices=("n",), values={"factor": 2.0})
    assert document.to_plain() == {
        "format": "voxelocity run comparison",
        "version": 1,
        "title": "t",
        "verdict": "v",
        "notices": ["n"],
        "factor": 2.0,
    }
