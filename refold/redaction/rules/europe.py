"""Pack ``pii-eu``: numbers that states of Europe give to people and companies."""

from refold.redaction.checks.numbers import (
    codice_fiscale,
    dutch_bsn,
    french_nir,
    german_tax_id,
    nhs,
    nino,
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
        examples=("Steuer-ID: «36574261809»", "IdNr. «36 574 261 809»"),
        counter_examples=("36574261809", "Steuer-ID: 36574261890"),
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
        examples=("NIR «2 95 10 99 126 111 93»", "n° «295109912611193»"),
        counter_examples=("295109912611194", "1295109912611193"),
    ),
    Rule(
        id="id.es",
        type="NATIONAL_ID",
        digits=7,
        shape=rf"{EDGE}[xyz0-9][ \-]?[0-9]{{7}}[ \-]?[a-z]{STOP}",
        pattern=rf"{FROM}(?:[0-9]{{8}}|[XYZ]-?[0-9]{{7}})-?[A-HJ-NP-TV-Z]{END}",
        validator=spanish_id,
        priority=51,
        examples=("DNI «54362315K»", "NIE «X-2482300-W»"),
        counter_examples=("54362315Z", "54362315k and a54362315K"),
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
        examples=("codice fiscale: «RCCMNL83S18D969H»", "C.F. «RCCMNL83S18D969H»"),
        counter_examples=("codice fiscale: RCCMNL83S18D969I", "RCCMNL83S18D969H"),
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
        examples=("BSN: «111222333»", ("bsn", "«1112.22.333»")),
        counter_examples=("111222333", "BSN: 111222334"),
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
        examples=("PESEL «44051401359»",),
        counter_examples=("44051401359", "PESEL 44051401358"),
    ),
    Rule(
        id="nino.uk",
        type="NATIONAL_ID",
        digits=6,
        shape=rf"{EDGE}[a-ceghj-prstw-z][a-ceghj-nprstw-z] ?[0-9]{{2}} ?[0-9]{{2}} ?"
        rf"[0-9]{{2}} ?[a-d]{STOP}",
        pattern=rf"{START}[A-CEGHJ-PRSTW-Z][A-CEGHJ-NPRSTW-Z] ?[0-9]{{2}} ?"
        rf"[0-9]{{2}} ?"
        rf"[0-9]{{2}} ?[A-D]{END}",
        validator=nino,
        priority=51,
        examples=("NI number «AB 12 34 56 C» and «JG123456A»",),
        counter_examples=("GB123456A", "QQ123456C", "xAB123456C"),
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
        examples=("NHS number: «943 476 5870»", ("nhs_number", "«9434765870»")),
        counter_examples=("943 476 5870", "NHS number: 943 476 5871"),
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
        examples=("VAT number: «DE136695976»", "BTW «NL 123456789 B01»"),
        counter_examples=("DE136695976", "VAT number: DE136695978", "vat XX136695976"),
    ),
)
