"""What is asked: prompts of a stated number of tokens, made from seeds alone. Runs on the box."""

import random

# Ordinary words that common BPE vocabularies hold as one token when a space precedes them.
WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city community name president team minute idea "
    "body information back parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education foot boy age policy music market sense "
    "nation plan college interest death experience effect use class control field development role effort rate "
    "heart drug show leader light voice wife police mind price report decision son view relationship town road "
    "arm difference value building action season society tax director position player record paper space ground "
    "form event matter center couple site project activity star table need court oil situation cost industry "
    "figure street image phone data picture practice piece land product doctor wall patient worker news test "
    "movie north love support technology step baby computer type attention film tree source hair window culture "
    "chance energy period course summer plant opportunity term letter condition choice rule south husband floor "
    "campaign material population call economy hospital church risk fire future bank west sport board subject "
    "officer rest behavior performance fight top goal second bed order author blood agency nature color store "
    "sound movement page race concern series language response animal factor decade article east artist scene "
    "stock career treatment approach size dog fund media sign thought list individual quality pressure answer "
    "resource meeting disease success cup amount ability staff character growth loss degree attack region "
    "television box training trade deal election feeling standard bill message analysis benefit sex lawyer "
    "section glass skill sister professor operation crime stage authority "
).split()
# The ASCII test models hold pairs of lower-case letters as one token; capitals, digits and the space are one token
# each.
ASCII = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 "
HEAD_TOKENS = 24


class Prompts:
    """Unique prompts of a stated number of tokens, made from seeds alone.

    shared prefix (one of ``prefix_groups``; differs by salt) + unique head (differs by seed, salt and index) + body
    (differs by seed and index only). The salt names the launch, so nothing that an earlier run left in a cache matches;
    bodies are equal in every arm. A prompt given as blocks (a trace with ``hash_ids``) shares exactly the blocks whose
    ids, and all ids before them, were seen before in the same lap of the trace.
    """

    def __init__(
        self, seed, salt, vocabulary, prompt_tokens, shared_prefix_tokens=0, prefix_groups=1, longest=None, block_tokens=512
    ):
        self.seed, self.salt = str(seed), str(salt)
        self.words = WORDS if vocabulary == "words" else ASCII
        self.joint = " " if vocabulary == "words" else ""
        self.tokens, self.block_tokens = prompt_tokens, block_tokens
        longest = max(prompt_tokens, longest or 0)
        shared = min(shared_prefix_tokens, longest)
        self.shared = [self._draw("shared/%s/%s" % (self.seed, self.salt), shared)]
        for group in range(1, prefix_groups):
            self.shared.append(self._draw("shared/%s/%s/%d" % (self.seed, self.salt, group), shared))
        self.pool = []
        if longest > HEAD_TOKENS:
            self.pool = self._draw("pool/%s" % self.seed, max(8192, 4 * longest))

    def _draw(self, seed, count):
        return random.Random(seed).choices(self.words, k=count)

    def _unique(self, name, body, tokens):
        """``tokens`` tokens: a head that depends on ``name`` and the salt, then a slice that depends on ``body`` alone."""
        head = self._draw("head/%s/%s/%s" % (self.seed, self.salt, name), min(HEAD_TOKENS, tokens))
        left = tokens - len(head)
        if not left:
            return head
        start = int(random.Random("body/%s/%s" % (self.seed, body)).random() * (len(self.pool) - left))
        return head + self.pool[start : start + left]

    def text(self, index, tokens=None, blocks=None, lap=0, opening=True):
        """The prompt of request ``index``. ``opening`` is false for the later turns of a conversation: what is shared
        stands at its beginning already."""
        tokens = self.tokens if tokens is None else tokens
        parts = []
        if blocks:
            for place, block in enumerate(blocks):
                size = min(self.block_tokens, tokens - place * self.block_tokens)
                if size <= 0:
                    break
                parts += self._unique("block/%d/%d" % (lap, block), "block/%d" % block, size)
            left = tokens - len(parts)
            return self.joint.join(parts + (self._unique(str(index), str(index), left) if left > 0 else []))
        if opening:
            parts = self.shared[index % len(self.shared)][:tokens]
        return self.joint.join(parts + self._unique(str(index), str(index), tokens - len(parts)))
