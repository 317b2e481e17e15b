#include "data/sentencepiece_shim.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

struct sw_spm {
    sentencepiece::SentencePieceProcessor processor;
};

namespace
{
// The one place where exceptions end: `work` returns a code, whatever it throws becomes one.
template <typename Work> sw_code guarded(const char *what, struct sw_err *err, Work work)
{
    try {
        return work();
    } catch (const std::bad_alloc &) {
        return SW_FAIL(err, SW_E_MEMORY, "no memory for %s", what);
    } catch (const std::exception &problem) {
        return SW_FAIL(err, SW_E_FORMAT, "%s: %s", what, problem.what());
    } catch (...) {
        return SW_FAIL(err, SW_E_FORMAT, "%s: the SentencePiece library failed", what);
    }
}

// The library's messages are "file(line) [condition] text": the text alone is for people.
std::string reason(const sentencepiece::util::Status &status)
{
    const std::string message = status.error_message();
    const size_t bracket = message.find("] ");
    const std::string text = bracket == std::string::npos ? message : message.substr(bracket + 2);
    return text.empty() ? message : text;
}

// Feeds the caller's texts to the trainer.
class Texts final : public sentencepiece::SentenceIterator
{
  public:
    explicit Texts(const struct sw_spm_training &training) : training_(training)
    {
        Next();
    }
    bool done() const override
    {
        return done_;
    }
    void Next() override
    {
        const char *text = nullptr;
        int64_t bytes = 0;
        done_ = !training_.next(training_.context, &text, &bytes);
        if (!done_)
            value_.assign(text, static_cast<size_t>(bytes));
    }
    const std::string &value() const override
    {
        return value_;
    }
    sentencepiece::util::Status status() const override
    {
        return sentencepiece::util::Status();
    }

  private:
    const struct sw_spm_training &training_;
    std::string value_;
    bool done_ = false;
};

// T5's ids. One thread: the order in which counts are added, and so the model, is fixed.
std::unordered_map<std::string, std::string> trainer_options(const struct sw_spm_training &training)
{
    char coverage[32];
    std::snprintf(coverage, sizeof coverage, "%.17g", training.character_coverage);
    return {{"model_type", "unigram"},
            {"vocab_size", std::to_string(training.pieces)},
            {"pad_id", "0"},
            {"eos_id", "1"},
            {"unk_id", "2"},
            {"bos_id", "-1"},
            {"character_coverage", coverage},
            {"split_digits", training.split_digits ? "true" : "false"},
            {"max_sentence_length", "1048576"},
            {"num_threads", "1"},
            {"minloglevel", "2"}};
}
} // namespace

extern "C" sw_code sw_spm_load(const void *bytes, int64_t count, const char *what,
                               struct sw_spm **out, struct sw_err *err)
{
    struct sw_spm *spm = nullptr;
    const sw_code code = guarded(what, err, [&]() -> sw_code {
        spm = new sw_spm;
        const auto status = spm->processor.LoadFromSerializedProto(
            std::string_view(static_cast<const char *>(bytes), static_cast<size_t>(count)));
        if (!status.ok())
            return SW_FAIL(err, SW_E_FORMAT, "%s is not a SentencePiece model that can be used: %s",
                           what, reason(status).c_str());
        return SW_OK;
    });
    if (code != SW_OK) {
        delete spm;
        return code;
    }
    *out = spm;
    return SW_OK;
}

extern "C" void sw_spm_free(struct sw_spm *spm)
{
    delete spm;
}

extern "C" int64_t sw_spm_pieces(const struct sw_spm *spm)
{
    return spm->processor.GetPieceSize();
}

extern "C" int32_t sw_spm_find(const struct sw_spm *spm, const char *piece)
{
    const int id = spm->processor.PieceToId(piece); // that of <unk> when there is none
    if (id < 0 || id >= spm->processor.GetPieceSize() || spm->processor.IdToPiece(id) != piece)
        return -1;
    return id;
}

extern "C" const char *sw_spm_piece(const struct sw_spm *spm, int32_t id, int64_t *out_bytes)
{
    const std::string &piece = spm->processor.IdToPiece(id);
    *out_bytes = static_cast<int64_t>(piece.size());
    return piece.data();
}

extern "C" enum sw_spm_kind sw_spm_kind(const struct sw_spm *spm, int32_t id)
{
    if (spm->processor.IsUnknown(id))
        return SW_SPM_UNKNOWN;
    if (spm->processor.IsControl(id))
        return SW_SPM_CONTROL;
    if (spm->processor.IsByte(id))
        return SW_SPM_BYTE;
    return SW_SPM_NORMAL;
}

extern "C" sw_code sw_spm_encode(const struct sw_spm *spm, const char *text, int64_t bytes,
                                 sw_spm_ids_fn append, void *context, struct sw_err *err)
{
    return guarded("the tokens of a text", err, [&]() -> sw_code {
        std::vector<int> ids;
        const auto status =
            spm->processor.Encode(std::string_view(text, static_cast<size_t>(bytes)), &ids);
        if (!status.ok())
            return SW_FAIL(err, SW_E_FORMAT, "a text cannot be tokenized: %s",
                           reason(status).c_str());
        if (!append(context, ids.data(), static_cast<int64_t>(ids.size())))
            return SW_FAIL(err, SW_E_MEMORY, "no memory for the tokens of a text");
        return SW_OK;
    });
}

extern "C" sw_code sw_spm_train(const struct sw_spm_training *training, void **out,
                                int64_t *out_bytes, struct sw_err *err)
{
    return guarded("a tokenizer's training", err, [&]() -> sw_code {
        Texts texts(*training);
        std::string model;
        const auto status =
            sentencepiece::SentencePieceTrainer::Train(trainer_options(*training), &texts, &model);
        if (!status.ok())
            return SW_FAIL(err, SW_E_USAGE, "a tokenizer of %lld pieces cannot be trained: %s",
                           static_cast<long long>(training->pieces), reason(status).c_str());
        void *copy = std::malloc(model.size() + 1);
        if (copy == nullptr)
            throw std::bad_alloc();
        std::memcpy(copy, model.data(), model.size());
        *out = copy;
        *out_bytes = static_cast<int64_t>(model.size());
        return SW_OK;
    });
}
