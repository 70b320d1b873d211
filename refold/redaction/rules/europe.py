"""Pack ``pii-eu``: numbers that states of Europe give to people and companies."""

from refold.redaction.checks.numbers import (
    codice_fiscale,
    dutch_bsn,
    french_nir,
    german_tax_id,
    nhs,
    pesel,
    spanish_id,
    vat,
)
from refold.redaction.rules.rule import (
    EDGE,
    END,
    FROM,
    QUOTE,
    START,
    STOP,
    TO,
    InContext,
    Rule,
)

PII_EU = (
    InContext(
        id="tax.de",
        type="TAX_ID",
        digits=11,
        gate=("steuer", "idnr", "tin", "tax"),
        context=r"(?i:steuer[ \-]?(?:id(?:entifikationsnummer)?|nummer|nr\.?)|idnr\.?"
        r"|(?<![a-z])(?:tin|tax[ _-]?id))(?![a-z])",
        pattern=rf"{FROM}[1-9][0-9] ?[0-9]{{3}} ?[0-9]{{3}} ?[0-9]{{3}}{TO}",
        validator=german_tax_id,
        priority=53,
    ),
    Rule(
        id="nir.fr",
        type="NIR",
        digits=13,
        shape=rf"{EDGE}[12] ?[0-9]{{2}} ?[0-9]{{2}} ?(?:[0-9]{{2}}|2[ab]) ?[0-9]{{3}} ?"
        rf"[0-9]{{3}} ?[0-9]{{2}}{STOP}",
        pattern=rf"{FROM}[12] ?[0-9]{{2}} ?(?:0[1-9]|1[0-2]|[2-9][0-9]) ?"
        rf"(?:[0-9]{{2}}|2[AB]) ?[0-9]{{3}} ?[0-9]{{3}} ?[0-9]{{2}}{TO}",
        validator=french_nir,
        priority=56,
    ),
    Rule(
        id="id.es",
        type="NATIONAL_ID",
        digits=7,
        shape=rf"{EDGE}[xyz0-9][ \-]?[0-9]{{7}}[ \-]?[a-z]{STOP}",
        pattern=rf"{FROM}(?:[0-9]{{8}}|[XYZ]-?[0-9]{{7}})-?[A-HJ-NP-TV-Z]{END}",
        validator=spanish_id,
        priority=51,
    ),
    Rule(
        id="tax.it",
        type="TAX_ID",
        gate=("fiscale", "cod. fisc", "codfisc", "cf:", "c.f."),
        then=rf"(?:{QUOTE})?(?:[ .:=]|\\{{1,7}}[nt]|\\|\"|$)",
        pattern=rf"(?i:fiscale|cod\. ?fisc\.?|codfisc|cf|c\.f\.)(?:{QUOTE}|"
        rf"[\s:=.]){{0,6}}"
        r"(?P<value>[A-Za-z]{6}[0-9LMNPQRSTUVlmnpqrstuv]{2}[A-EHLMPR-Ta-ehlmpr-t]"
        r"[0-9LMNPQRSTUVlmnpqrstuv]{2}[A-Za-z][0-9LMNPQRSTUVlmnpqrstuv]{3}[A-Za-z])"
        r"(?![0-9A-Za-z])",
        validator=codice_fiscale,
        priority=53,
    ),
    InContext(
        id="bsn.nl",
        type="NATIONAL_ID",
        digits=8,
        gate=("bsn", "burgerservice", "sofi"),
        context=r"(?i:(?<![a-z])bsn|burgerservicenummer|(?<![a-z])sofi(?:nummer)?)"
        r"(?:[ \-]?(?:nr|nummer)\.?)?(?![a-z])",
        pattern=rf"{FROM}[0-9]{{3,4}}[ .]?[0-9]{{2}}[ .]?[0-9]{{3}}{TO}",
        validator=dutch_bsn,
        priority=51,
    ),
    InContext(
        id="pesel.pl",
        type="NATIONAL_ID",
        digits=11,
        gate=("pesel",),
        context=r"(?i:pesel)",
        pattern=rf"{FROM}[0-9]{{11}}{TO}",
        validator=pesel,
        priority=51,
    ),
    InContext(
        id="nhs.uk",
        type="NHS_NUMBER",
        digits=10,
        gate=("nhs",),
        context=r"(?<![A-Za-z])(?i:nhs)(?![a-z])",
        pattern=rf"{FROM}[0-9]{{3}}[ \-]?[0-9]{{3}}[ \-]?[0-9]{{4}}{TO}",
        validator=nhs,
        priority=53,
    ),
    InContext(
        id="vat.context",
        type="VAT",
        digits=6,
        gate=("vat", "tva", "iva", "ust", "btw", "nif", "nip"),
        context=r"(?<![A-Za-z])(?i:vat|tva|p?\.? ?iva|ust|btw|nif|nip)"
        r"(?i:[ .\-]?id(?:nr)?\.?|[ \-]?(?:reg|registration))?(?![a-z])",
        pattern=rf"{START}[A-Za-z]{{2}} ?[0-9A-Za-z](?:[ .\-]?[0-9]){{1,11}}"
        rf"(?:[ .\-]?[0-9A-Za-z]){{0,3}}{END}",
        validator=vat,
        priority=50,
    ),
)
